# SPDX-License-Identifier: Apache-2.0
"""Real checkpoints (quantized by ``vllm-ext quantize``), real engines and real servers."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.tools.dequantize_checkpoint import dequantize_checkpoint

DEMO = ROOT / "build" / "demo" / "SmolLM2-135M-Instruct-MXFP4"
QUANTIZE = ROOT / ".venv-quark" / "bin" / "vllm-ext"
VLLM = str(Path(sys.executable).with_name("vllm"))
API_SERVER = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model")
SERVER_START = 400  # seconds; the first start compiles
# A container may report a NUMA node smaller than its memory, on which vLLM's start-up check would refuse.
ENGINE_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a checkpoint by name, made when first asked for.

    "demo": the real model, quantized. "llama" and "mla": random, 8 and 4 heads, the source quantized by our command.
    "NAME-dense": the bf16 model that NAME stands for.
    """
    folder = tmp_path_factory.mktemp("models")
    made: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name == "demo":
            assert (DEMO / "config.json").is_file(), "make the demo checkpoint first: make test"
            return DEMO
        if name.endswith("-dense"):
            return dequantize_checkpoint(get(name.removesuffix("-dense")), folder / name)
        kind = {"llama": "llama", "mla": "deepseek_mla", "big": "big_llama"}[name]
        source = folder / f"{name}-source"
        tool = ROOT / "tests" / "tools" / "make_tiny_models.py"
        subprocess.run([sys.executable, tool, kind, source, "--tokenizer", DEMO], check=True)
        path = f"{QUANTIZE.parent}:{os.environ['PATH']}"  # ninja, which amd-quark calls
        command = [QUANTIZE, "quantize", source, folder / name]
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        shutil.rmtree(source)
        return folder / name

    def get(name: str) -> Path:
        if name not in made:
            made[name] = build(name)
        return made[name]

    return get


@pytest.fixture
def edited(models: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a copy of a checkpoint whose config.json and tensors a function has changed in place."""

    def edit(
        name: str, config: Callable[[dict[str, Any]], None] | None = None, tensors: Callable[..., None] | None = None
    ) -> Path:
        from safetensors.torch import load_file, save_file

        folder = tmp_path / f"edited-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(models(name), folder)
        if config is not None:
            content = json.loads((folder / "config.json").read_text())
            config(content)
            (folder / "config.json").write_text(json.dumps(content))
        if tensors is not None:
            file = folder / "model.safetensors"
            content = load_file(file)
            tensors(content)
            save_file(content, file, metadata={"format": "pt"})
        return folder

    return edit


def run_engine(folder: Path, job: dict[str, Any], env: dict[str, str] | None = None, timeout: float = 600) -> list[Any]:
    """Run a job of tests/tools/engine.py in a child process; returns the results of its steps, or of its attempts."""
    out = folder / "result.json"
    out.unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps({**job, "out": str(out)}))
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "tools" / "engine.py", folder / "job.json"],
        env={**os.environ, **ENGINE_ENV, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **(env or {})},
        cwd=folder,  # not the checkout: the installed package is what is tested
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0 and out.is_file(), done.stdout[-8000:]
    results: list[Any] = json.loads(out.read_text())
    return results


@pytest.fixture
def engine(tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_engine` in the test's own folder."""
    return functools.partial(run_engine, tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(log: Path, *command: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Start a server, wait until it answers, yield its address, stop it. Its output goes to *log*."""
    port = free_port()
    with log.open("w") as output:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **ENGINE_ENV, **(env or {})},
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(server, address, log)
            yield address
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


def _wait(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + SERVER_START
    while time.monotonic() < deadline:
        assert server.poll() is None, f"the server ended with {server.returncode}:\n{log.read_text()[-6000:]}"
        try:
            urllib.request.urlopen(f"{address}/health", timeout=2)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"no answer within {SERVER_START} s:\n{log.read_text()[-6000:]}")
