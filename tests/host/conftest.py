# SPDX-License-Identifier: Apache-2.0
"""Children that see an installed vLLM, and packages made on the spot that they see beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.machine import on_zen

VLLM_EXT = str(Path(sys.executable).with_name("vllm-ext"))
VLLM = str(Path(sys.executable).with_name("vllm"))


@pytest.fixture
def doctor(run) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run ``vllm-ext doctor --json``; returns (exit code, report). zen: on an AMD CPU with AVX-512, see `on_zen`."""

    def ask(*flags: str, zen: bool = False, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        command = (VLLM_EXT, "doctor", "--json", *flags)
        done = run(*(on_zen(*command) if zen else command), **kwargs)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        return done.returncode, json.loads(done.stdout)

    return ask


def states(report: dict[str, Any]) -> dict[str, str]:
    return {capability["id"]: capability["state"] for capability in report["capabilities"]}


def reason(report: dict[str, Any], capability_id: str) -> str:
    return next(c["reason"] for c in report["capabilities"] if c["id"] == capability_id)


@pytest.fixture
def broken_zentorch(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a zentorch 2.11 whose library has an undefined symbol, as an ABI mismatch gives."""
    folder = tmp_path / "broken"
    package = folder / "zentorch"
    package.mkdir(parents=True)
    source = tmp_path / "broken.c"
    source.write_text("extern int not_in_this_torch(void); int call(void) { return not_in_this_torch(); }")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed"
    library = package / "libzentorch.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-z,now", "-o", library, source], check=True)
    (package / "__init__.py").write_text(f"import ctypes\nctypes.CDLL({str(library)!r}, mode=2)\n")
    (package / "_build_info.py").write_text('__torchversion__ = "2.11.0+cpu"\n')
    info = folder / "zentorch-2.11.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zentorch\nVersion: 2.11.0.0\n")
    return folder


@pytest.fixture
def rival(tmp_path: Path) -> Callable[[str], Path]:
    """Make a folder for PYTHONPATH with another platform plugin, whose function returns the given expression."""

    def make(returns: str) -> Path:
        folder = tmp_path / "rival"
        info = folder / "rival_platform-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / "rival_platform.py").write_text(f"def claim():\n    return {returns}\n")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rival-platform\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nrival = rival_platform:claim\n")
        return folder

    return make
