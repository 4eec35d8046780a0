# SPDX-License-Identifier: Apache-2.0
"""Every capability's state and reason on a real vLLM: on, off, left out and broken."""

from __future__ import annotations

import pytest
from packaging.version import Version

from tests import machine
from tests.host.conftest import reason, states
from tests.machine import HAS_KERNEL_TABLE, IN_TREE, PLAIN, VLLM, ZEN
from vllm_ext import envs, features

CPUS = [True] if ZEN else [False, True]  # this machine's own, and a Zen


@pytest.mark.parametrize("flags", [(), ("--live",)], ids=["here", "live"])
@pytest.mark.parametrize("zen", CPUS, ids=lambda zen: "zen" if zen else "not_zen")
def test_on(doctor, flags, zen):
    code, report = doctor(*flags, zen=zen)
    assert code == 0 and report["problems"] == []
    assert states(report) == {"zen_cpu": machine.zen_state(zen), "quark_mxfp4": "active"}
    assert report["vllm"]["version"] and report["platform"]["class"] == machine.platform(zen)
    assert report["native"]["available"] and report["native"]["path"] in ("avx512_bf16", "avx2")
    assert report["native"]["reason"] and report["native"]["check"] == "one multiplication equals the reference"
    assert [toggle["name"] for toggle in report["toggles"]] == [var.name for var in envs.TABLE]
    assert all(set(toggle) == {"name", "value", "source"} for toggle in report["toggles"])
    assert report["vllm_ext"]["process"] == ("vllm_ext-live" if flags else "MainProcess")


@pytest.mark.parametrize("zen", CPUS, ids=lambda zen: "zen" if zen else "not_zen")
def test_all_off(doctor, zen):
    code, report = doctor(env={"VLLM_EXT": "0"}, zen=zen)
    assert code == 0 and set(states(report).values()) == {"off"}
    assert report["platform"]["class"] == machine.stock_platform(zen)
    assert "No package metadata" in report["vllm"]["command"]


@pytest.mark.parametrize("feature", features.CATALOGUE, ids=lambda feature: feature.id)
def test_one_off(doctor, feature):
    code, report = doctor(env={feature.toggle: "0"})
    assert code == 0
    assert {name for name, state in states(report).items() if state == "off"} == {feature.id}
    assert reason(report, feature.id) == f"by {feature.toggle}=0"


def test_off_leaves_vllm_as_it_is(python):
    kernels = (
        "from vllm.model_executor.kernels import linear\nfrom vllm.platforms import PlatformEnum\n"
        "print('kernels', linear._POSSIBLE_MXFP4_KERNELS.get(PlatformEnum.CPU, []))\n"
    )
    method = (
        "from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig\n"
        "module = QuarkConfig.get_quant_method.__globals__['__name__']\n"
        "print('kernels', [] if module.startswith('vllm.') else module)\n"
    )
    source = (
        "from vllm.plugins import load_general_plugins; load_general_plugins()\n"
        + (kernels if HAS_KERNEL_TABLE else method)
        + "import vllm.envs, sys\n"
        "print('names', 'VLLM_EXT' in vllm.envs.environment_variables)\n"
        "print('finders', [f for f in sys.meta_path if type(f).__module__.startswith('vllm_ext.')])\n"
    )
    done = python(source, env={"VLLM_EXT": "0"})
    assert "kernels []" in done.stdout and "names True" in done.stdout and "finders []" in done.stdout, done.stderr
    ours = "VllmExtCpuMxFp4LinearKernel" if HAS_KERNEL_TABLE else "kernels vllm_ext.quant.quark_method"
    assert ours in python(source).stdout


@pytest.mark.parametrize("plugins", ["", "something_else"])
def test_left_out_by_vllm_plugins(doctor, plugins):
    code, report = doctor(env={"VLLM_PLUGINS": plugins})
    assert code == 0 and set(states(report).values()) == {"off"}
    sentence = reason(report, "zen_cpu")
    assert f"VLLM_PLUGINS={plugins!r} leaves vllm_ext out" in sentence
    assert f"set VLLM_PLUGINS={','.join(filter(None, [plugins, 'vllm_ext']))} or unset it" in sentence
    assert "python -m vllm.entrypoints.openai.api_server" in report["vllm"]["command"]


def test_left_out_although_switched_on(doctor):
    code, report = doctor(env={"VLLM_PLUGINS": "something_else", "VLLM_EXT_QUARK_MXFP4": "1"})
    assert code == 1 and any("leaves vllm_ext out" in problem for problem in report["problems"])


@pytest.mark.skipif(Version("0.28") > VLLM, reason="this vLLM asks platform plugins whatever VLLM_TARGET_DEVICE says")
def test_target_device_skips_the_platform_plugin(doctor):
    code, report = doctor(env={"VLLM_TARGET_DEVICE": "cpu"}, zen=True)
    assert code == 0
    assert states(report) == {"zen_cpu": "native", "quark_mxfp4": "active"}
    assert "skip every platform plugin" in reason(report, "zen_cpu") and report["platform"]["class"] == IN_TREE
    assert "python -m vllm.entrypoints.openai.api_server" in report["vllm"]["command"]


@pytest.mark.parametrize("name, value", [("VLLM_EXT_ZENCPU", "1"), ("VLLM_EXT_ZEN_CPU", "yess")])
def test_a_mistyped_variable(doctor, name, value):
    code, report = doctor(env={name: value})
    assert code == 1
    assert any(name in problem and "did you mean" in problem for problem in report["problems"])


def test_a_broken_zentorch_leaves_the_plain_platform_and_names_the_right_one(doctor, broken_zentorch):
    code, report = doctor(env={"PYTHONPATH": str(broken_zentorch)}, zen=True)
    assert code == 0
    assert states(report) == {"zen_cpu": "unsupported", "quark_mxfp4": "active"}
    assert report["platform"]["class"] == PLAIN
    sentence = reason(report, "zen_cpu")
    assert "zentorch 2.11.0.0, built for torch 2.11, does not load beside torch" in sentence
    assert "undefined symbol: not_in_this_torch" in sentence and "pip install 'zentorch==2." in sentence
    code, report = doctor(env={"PYTHONPATH": str(broken_zentorch), "VLLM_EXT_ZEN_CPU": "1"}, zen=True)
    assert code == 1 and any("VLLM_EXT_ZEN_CPU=1 asks for it" in problem for problem in report["problems"])


def test_another_platform_plugin_that_claims_the_host_wins(doctor, rival):
    code, report = doctor(env={"PYTHONPATH": str(rival(repr(PLAIN)))}, zen=True)
    assert code == 0 and report["platform"]["class"] == PLAIN
    assert states(report)["zen_cpu"] == "not_applicable"
    assert "the platform plugin 'rival' claims this host" in reason(report, "zen_cpu")


def test_another_platform_plugin_that_stands_aside_does_not_matter(doctor, rival):
    _, report = doctor(env={"PYTHONPATH": str(rival("None"))}, zen=True)
    assert report["platform"]["class"] == machine.platform(True)


def test_strict_refuses_and_lenient_serves(python):
    source = "from vllm.plugins import load_general_plugins; load_general_plugins(); print('went on')"
    env = {"VLLM_EXT_QUARK": "1"}
    assert "went on" in python(source, env=env).stdout
    done = python(source, env=env | {"VLLM_EXT_STRICT": "1"})
    assert done.returncode != 0 and "went on" not in done.stdout
    assert "VLLM_EXT_STRICT=1 refuses to start" in done.stderr
    assert "did you mean VLLM_EXT_QUARK_MXFP4?" in done.stderr


def test_doctor_reports_where_a_strict_server_would_refuse(doctor):
    code, report = doctor(env={"VLLM_EXT_STRICT": "1", "VLLM_EXT_QUARK": "1"})
    assert code == 1 and report["vllm"]["error"] is None and report["platform"]["class"] == machine.platform()
    assert states(report) == {"zen_cpu": machine.zen_state(), "quark_mxfp4": "active"}
    assert any("did you mean VLLM_EXT_QUARK_MXFP4?" in problem for problem in report["problems"])


def test_our_names_draw_no_warning_and_enter_the_compile_key(python):
    source = (
        "from vllm.engine.arg_utils import EngineArgs\nEngineArgs()\n"
        "import vllm.envs as envs\nfrom vllm.platforms.interface import Platform\n"
        "from vllm.platforms import current_platform\n"
        "check = current_platform if hasattr(Platform, 'validate_environ') else envs\n"
        "check.validate_environ(hard_fail=True)\n"
        "envs.enable_envs_cache()\nprint(envs.compile_factors()['VLLM_EXT_QUARK_MXFP4'])\n"
    )
    done = python(source, env={"VLLM_EXT_QUARK_MXFP4": "1", "VLLM_EXT_STRICT": "garbage"})
    assert done.stdout.splitlines()[-1] == "1", done.stdout + done.stderr
    assert python(source, env={"VLLM_EXT": "0", "VLLM_EXT_QUARK_MXFP4": "1"}).returncode == 0
