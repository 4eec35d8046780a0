# SPDX-License-Identifier: Apache-2.0
"""What SRC may be, and what is said when it is not."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run
from vllm_ext.quantize.errors import InputError
from vllm_ext.quantize.source import resolve, weight_files


def folder(path: Path, config: str = "{}", *weights: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    for name in weights:
        (path / name).write_bytes(b"12345")
    return path


def refusal(given: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        resolve(str(given), progress=False)
    return str(caught.value)


def test_a_folder(tmp_path: Path) -> None:
    source = resolve(str(folder(tmp_path / "m", "{}", "model.safetensors", "pytorch_model.bin")), progress=False)
    assert (source.kind, source.folder, source.size, source.load_args) == ("folder", tmp_path / "m", 5, {})


def test_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF rest")
    source = resolve(str(tmp_path / "m.gguf"), progress=False)
    assert (source.kind, source.folder, source.size) == ("gguf", tmp_path, 9)
    assert source.load_args == {"gguf_file": "m.gguf"}


def test_only_the_weights_that_an_index_names_count(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "{}", "a.safetensors", "b.safetensors", "consolidated.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [file.name for file in weight_files(path)] == ["a.safetensors", "b.safetensors"]
    (path / "b.safetensors").unlink()
    assert "lacks b.safetensors, which model.safetensors.index.json names" in refusal(path)
    (path / "model.safetensors.index.json").write_text("{")
    assert "is no valid weight index" in refusal(path)


@pytest.mark.parametrize("given", ["/no/such/folder", "./no-such-folder", "no-such.gguf", "a/b/c"])
def test_what_can_only_be_a_path_must_exist(given: str) -> None:
    assert f"SRC {given} does not exist" in refusal(given)


def test_a_folder_without_config_names_its_gguf_files(tmp_path: Path) -> None:
    assert "holds no config.json" in refusal(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert f"give one file, for instance {tmp_path}/m.gguf" in refusal(tmp_path)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    assert "is a file but no GGUF file (it starts with b'PK\\x03\\x04')" in refusal(tmp_path / "m.gguf")


def test_broken_and_foreign_configs(tmp_path: Path) -> None:
    assert "is no valid JSON" in refusal(folder(tmp_path / "a", "{", "model.safetensors"))
    assert "is no valid JSON (not a JSON object)" in refusal(folder(tmp_path / "b", "[]", "model.safetensors"))
    assert "holds no weights" in refusal(folder(tmp_path / "c", "{}"))


def test_a_quantized_source(tmp_path: Path) -> None:
    config = '{"quantization_config": {"quant_method": "gptq"}}'
    assert "already quantized (quant_method 'gptq')" in refusal(folder(tmp_path / "m", config, "model.safetensors"))


RESOLVE = """
import sys
from vllm_ext.quantize.errors import QuantizeError
from vllm_ext.quantize.source import resolve
try:
    print(resolve(sys.argv[1], progress=False).path)
except QuantizeError as error:
    print(error.exit_code, error)
"""

Hub = Callable[..., str]


@pytest.fixture
def ask(run: Run, tmp_path: Path) -> Hub:
    """Resolve an id through the real hub client, which reads its environment when it is imported."""

    def ask_hub(identifier: str, endpoint: str) -> str:
        env = {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}
        done = run(sys.executable, "-c", RESOLVE, identifier, env=env)
        return done.stdout.strip() or done.stderr

    return ask_hub


@pytest.fixture
def hub(llama: Path) -> Iterator[str]:
    """A hub with one model, `some/llama`, over HTTP on this machine."""
    commit = "0" * 40
    files = {path.name: path.read_bytes() for path in llama.iterdir()}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            if self.path.startswith("/api/models/some/llama/tree/"):
                tree = [{"type": "file", "path": name, "oid": "0", "size": len(files[name])} for name in files]
                self.answer(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
            elif self.path.startswith("/api/models/some/llama/"):
                listing = {"id": "some/llama", "sha": commit, "siblings": [{"rfilename": name} for name in files]}
                self.answer(200, json.dumps(listing).encode(), {"Content-Type": "application/json"})
            elif self.path.startswith("/some/llama/resolve/") and name in files:
                self.answer(200, files[name], {"ETag": f'"{name}"', "X-Repo-Commit": commit})
            else:
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_hub_id_is_downloaded(ask: Hub, hub: str, llama: Path) -> None:
    path = Path(ask("some/llama", hub))
    assert (path / "model.safetensors").read_bytes() == (llama / "model.safetensors").read_bytes()
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE"} <= set(os.listdir(path))


def test_a_hub_id_that_does_not_exist(ask: Hub, hub: str) -> None:
    said = ask("some/lama", hub)
    assert said.startswith("2 SRC some/lama is neither a folder here nor a model on the hub: check the spelling")


def test_a_hub_that_cannot_be_reached(ask: Hub) -> None:
    said = ask("some/llama", "http://127.0.0.1:9")
    assert said.startswith("1 SRC some/llama is no folder here, is not in the hub cache, and the hub cannot be reached")
