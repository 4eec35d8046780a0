# SPDX-License-Identifier: Apache-2.0
"""Building and loading the native library: real compilers and processes, a copy of the package without built files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_ext.native import build, load

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import sys
from pathlib import Path
from vllm_ext.native.load import load_native
status = load_native(Path(sys.argv[1]), allow_build=sys.argv[2] == "build")
assert load_native(Path(sys.argv[1]), allow_build=sys.argv[2] == "build") is status
print(status.available, status.path, status.origin, status.file, status.reason, sep="|")
"""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the kernels are for x86-64")


def copy_package(folder: Path) -> Path:
    """A source checkout without built libraries; returns the folder to import from."""
    shutil.copytree(ROOT / "vllm_ext", folder / "vllm_ext", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    return folder


def start_load(package: Path, cache: Path, mode: str = "build", **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOAD, str(cache), mode],
        env={**os.environ, "PYTHONPATH": str(package), **env},
        cwd=package,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str]) -> load.NativeStatus:
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, err
    available, path, origin, file, reason = out.strip().split("|", 4)
    return load.NativeStatus(available == "True", path, origin, None if file == "None" else file, reason)


def compiler(folder: Path, body: str) -> str:
    """A compiler of our own, for $CXX."""
    script = folder / "cxx"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_package(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def built(package: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[load.NativeStatus], list[str]]:
    """Two processes that build into one empty cache at once: the cache, what they report, and the compiler's log."""
    assert shutil.which("g++"), "g++ is needed"
    folder = tmp_path_factory.mktemp("race")
    log = folder / "log"
    cxx = compiler(folder, f'echo "$@" >> {log}\nexec g++ "$@"')
    children = [start_load(package, folder / "cache", CXX=cxx) for _ in range(2)]
    statuses = [finish(child) for child in children]
    return folder / "cache", statuses, log.read_text().splitlines()


def test_two_processes_build_once(built: tuple[Path, list[load.NativeStatus], list[str]]) -> None:
    cache, statuses, log = built
    sources = [file.name for file in build.find_sources().glob("*.cpp")]
    assert len([line for line in log if " -c " in line]) == len(sources)
    assert len([line for line in log if "-shared" in line]) == 1
    for status in statuses:
        assert status.available
        assert status.origin == "cache"
        assert status.path in ("avx512_bf16", "avx2")
        assert status.file is not None
        assert Path(status.file).is_relative_to(cache)
        assert status.reason == f"{status.path} kernels loaded from {status.file}"
    assert sorted(path.name for path in cache.glob("*/*")) == ["_native.sha256", "_native.so", "lock"]


def test_built_library_is_found_again(
    package: Path, built: tuple[Path, list[load.NativeStatus], list[str]], tmp_path: Path
) -> None:
    cache, statuses, _ = built
    assert finish(start_load(package, cache, "no", PATH="")) == statuses[0]
    status = finish(start_load(package, tmp_path / "other", "no"))
    assert "not built yet" in status.reason


def test_truncated_library_is_not_loaded(
    package: Path, built: tuple[Path, list[load.NativeStatus], list[str]], tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(built[0], cache)
    (library,) = cache.glob("*/_native.so")
    whole = library.read_bytes()
    library.write_bytes(whole[:50_000])
    status = finish(start_load(package, cache, "no"))
    assert not status.available
    assert "not built yet" in status.reason
    library.write_bytes(whole)
    assert finish(start_load(package, cache, "no")).available


def test_library_of_the_package_comes_first(
    built: tuple[Path, list[load.NativeStatus], list[str]], tmp_path: Path
) -> None:
    package = copy_package(tmp_path / "package")
    prebuilt = package / "vllm_ext" / load.PREBUILT_NAME
    library = next(built[0].glob("*/_native.so")).read_bytes()
    for unusable in (
        b"\x7fELF, right sources, wrong system: vllm_ext build " + build.build_id(package / "csrc").encode(),
        library.replace(b"vllm_ext build ", b"vllm_ext build of other sources "),
    ):
        prebuilt.write_bytes(unusable)
        status = finish(start_load(package, tmp_path / "empty", "no"))
        assert "not built yet" in status.reason
    prebuilt.write_bytes(library)
    status = finish(start_load(package, tmp_path / "empty", "no"))
    assert (status.available, status.origin, status.file) == (True, "wheel", str(prebuilt))
    assert not (tmp_path / "empty").exists()


def test_no_compiler(package: Path, tmp_path: Path) -> None:
    status = finish(start_load(package, tmp_path / "cache", PATH=""))
    assert not status.available
    assert (status.path, status.origin, status.file) == ("none", "none", None)
    assert status.reason.startswith("no C++ compiler found (looked for $CXX, g++, clang++, c++): install g++")


def test_cache_that_cannot_be_written(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file where a folder is wanted: refuses root too")
    for cache in (tmp_path / "file" / "cache", Path("/proc/vllm_ext")):
        status = finish(start_load(package, cache))
        assert not status.available
        assert str(cache) in status.reason
        assert status.reason.endswith("choose a folder that can be written")


def test_compiler_that_fails_or_dies_half_way(package: Path, tmp_path: Path) -> None:
    half_written = compiler(
        tmp_path,
        'for last; do :; done\necho half > "$last"\n[ "$1" = -shared ] || exit 0\n'
        'echo "error: the disk is full" >&2\nexit 1',
    )
    status = finish(start_load(package, tmp_path / "cache", CXX=half_written))
    assert not status.available
    assert "error: the disk is full" in status.reason
    assert [path.name for path in (tmp_path / "cache").glob("*/*")] == ["lock"]


def test_old_torch_is_refused(tmp_path: Path) -> None:
    source = f"import torch; torch.__version__ = '2.9.1+cpu'\n{LOAD}"
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path), "build"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "torch 2.9.1+cpu is older than 2.10" in done.stdout
    assert done.stdout.startswith("False|none|none|None|")


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(build.NativeBuildError, match="this machine is riscv64"):
        build.build_library(tmp_path / "x.so", build.find_sources())


def test_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(build.NativeBuildError, match="torch cannot be imported .*: install torch >= 2.10"):
        build.build_library(tmp_path / "x.so", build.find_sources())


def test_missing_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(build.NativeBuildError, match="no C\\+\\+ sources in"):
        build.build_library(tmp_path / "x.so", tmp_path)


def test_build_file_stands_alone() -> None:
    """setup.py loads it by its path, before torch and the package are there."""
    source = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("b", {str(ROOT / "vllm_ext/native/build.py")!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert "torch" not in sys.modules and "vllm_ext" not in sys.modules
print(module.find_sources())
"""
    done = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ROOT / "csrc")


def test_only_named_files_use_more_than_any_machine_has() -> None:
    for file in build.source_files(build.find_sources()):
        wide = any(flag.startswith("-mavx") for flag in build.flags_for(file))
        assert wide == (file.stem.endswith(("_avx2", "_avx512bf16"))), file.name


def test_only_the_stable_abi_is_included() -> None:
    for file in build.source_files(build.find_sources()):
        for line in file.read_text().splitlines():
            if line.startswith("#include <") and "/" in line:
                assert line.startswith(("#include <torch/csrc/stable/", "#include <torch/headeronly/")), (
                    file.name,
                    line,
                )


def test_lock_held_by_another_process_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with load._file_lock(lock), pytest.raises(build.NativeBuildError, match="another process has held"):  # noqa: SIM117
        with load._file_lock(lock, seconds=0.3):
            pass
    with load._file_lock(lock, seconds=0.3):
        pass
