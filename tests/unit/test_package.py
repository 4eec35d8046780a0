# SPDX-License-Identifier: Apache-2.0
"""The wheel holds the sources of the kernels always, and the built library where a compiler was at hand."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = {f"vllm_ext/csrc/{file.name}" for file in (ROOT / "csrc").iterdir()}
LIBRARY = "vllm_ext/_native.abi3.so"


@pytest.mark.parametrize("compiler", [True, False], ids=["compiler", "no_compiler"])
def test_wheel(run, tmp_path, compiler):
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("*.so", ".*", "build", "*.egg-info", "__pycache__", "tests")
    shutil.copytree(ROOT, source, ignore=ignore)
    env = {} if compiler else {"PATH": str(Path(sys.executable).parent), "CXX": ""}
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "-v")
    done = run(sys.executable, "-m", "pip", "wheel", *flags, "-w", str(tmp_path), str(source), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("vllm_ext-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entries = next(archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))
        metadata = next(archive.read(name).decode() for name in names if name.endswith("METADATA"))
    assert names >= SOURCES and (LIBRARY in names) == compiler
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "vllm_ext").rglob("*.py")}
    assert names >= modules, "setup.py names every package"
    assert "vllm_ext = vllm_ext.entrypoints:platform" in entries and "vllm-ext = vllm_ext.cli:main" in entries
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert required == [], "a requirement on vllm or torch would replace a CPU build"
    if not compiler:
        said = done.stdout + done.stderr
        assert "native kernels not built now" in said and "no C++ compiler found" in said
