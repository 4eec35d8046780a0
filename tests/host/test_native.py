# SPDX-License-Identifier: Apache-2.0
"""What doctor says of the native kernel: built on first use, switched off, and where it cannot be built."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.host.conftest import reason, states


@pytest.fixture
def unbuilt(tmp_path) -> Path:
    """A folder for PYTHONPATH with the package as it is where no kernel was built at install time."""
    folder = tmp_path / "unbuilt"
    shutil.copytree(ROOT / "vllm_ext", folder / "vllm_ext", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copytree(ROOT / "csrc", folder / "csrc")
    return folder


def test_built_on_first_use(doctor, unbuilt, tmp_path):
    env = {"PYTHONPATH": str(unbuilt), "VLLM_EXT_CACHE_DIR": str(tmp_path / "cache")}
    _, report = doctor(env=env)
    assert "native kernel to be built on first use" in reason(report, "quark_mxfp4")
    assert report["native"]["available"] and report["native"]["origin"] == "cache"
    assert report["native"]["check"] == "one multiplication equals the reference"
    _, report = doctor(env=env)
    assert "native kernel avx" in reason(report, "quark_mxfp4")


@pytest.mark.parametrize(
    "cause, words",
    [
        ({"PATH": str(Path(sys.executable).parent), "CXX": ""}, ["no C++ compiler found", "install g++"]),
        ({"VLLM_EXT_CACHE_DIR": "file/cache"}, ["the kernel cache file/cache cannot be used", "folder that can be"]),
        ({"VLLM_EXT_NATIVE": "0"}, ["off by VLLM_EXT_NATIVE=0"]),
    ],
    ids=["no_compiler", "unwritable_cache", "off"],
)
def test_where_it_cannot_be_had_weights_are_dequantized(doctor, unbuilt, tmp_path, cause, words):
    (tmp_path / "file").touch()  # no folder can be made below it, not even by root
    env = {"PYTHONPATH": str(unbuilt), "VLLM_EXT_CACHE_DIR": str(tmp_path / "cache"), **cause}
    code, report = doctor(env=env)
    assert code == 0 and states(report)["quark_mxfp4"] == "active"
    assert "weights are dequantized at load" in reason(report, "quark_mxfp4")
    assert report["native"]["available"] is False and report["native"]["path"] == "none"
    for word in words:
        assert word in report["native"]["reason"]
