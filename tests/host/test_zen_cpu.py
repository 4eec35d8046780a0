# SPDX-License-Identifier: Apache-2.0
"""The platform class over both bases: vLLM's own Zen platform, and the plain one of a release without it."""

from __future__ import annotations

import sys

import pytest

from tests.machine import OURS, ZENTORCH_FITS, needs_zen, on_zen

needs_zentorch = pytest.mark.skipif(not ZENTORCH_FITS, reason="no zentorch that loads beside this torch is installed")
# A release without the module answers its import in the same way.
WITHOUT_IN_TREE = "import sys; sys.modules['vllm.platforms.zen_cpu'] = None\n"
LINEAR = """
import torch
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor.layers import utils
from vllm.platforms.cpu import CpuPlatform
from vllm_ext.features import outcomes
print("bases", [base.__qualname__ for base in type(current_platform).__mro__])
print("zen", current_platform.is_zen_cpu(), current_platform.supported_dtypes)
print("reason", outcomes()["zen_cpu"].state.value, outcomes()["zen_cpu"].reason)
torch.manual_seed(0)
layer = torch.nn.Linear(96, 160, bias=True, dtype=torch.bfloat16)
weight = layer.weight.detach().clone()
utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
x = torch.randn(5, 96, dtype=torch.bfloat16)
got = layer.cpu_linear(x, layer.weight, layer.bias).float()
want = torch.nn.functional.linear(x.double(), weight.double(), layer.bias.double()).float()
print("close", torch.allclose(got, want, rtol=2**-8, atol=2**-8), "removed", layer.weight.numel() == 0)
print("ours", "vllm_ext" in layer.cpu_linear.__module__, [c.cell_contents for c in layer.cpu_linear.__closure__
      if isinstance(c.cell_contents, bool)])
"""


@needs_zen
def test_extends_the_in_tree_class(python):
    done = python(LINEAR)
    assert "'ZenCpuPlatform', 'ZenCpuPlatform', 'CpuPlatform'" in done.stdout, done.stdout + done.stderr
    assert "zen True [torch.bfloat16, torch.float32]" in done.stdout
    assert "reason active" in done.stdout and "extends vLLM's own" in done.stdout
    assert "close True removed True" in done.stdout and "ours False" in done.stdout


@needs_zen
@pytest.mark.parametrize("prepack", ["1", "0"])
def test_brings_the_dispatch_where_there_is_no_in_tree_class(python, prepack):
    done = python(WITHOUT_IN_TREE + LINEAR, env={"VLLM_ZENTORCH_WEIGHT_PREPACK": prepack})
    assert "bases ['ZenCpuPlatform', 'CpuPlatform'" in done.stdout, done.stdout + done.stderr
    assert "zen True" in done.stdout and "brings the zentorch linear dispatch" in done.stdout
    assert "close True removed True" in done.stdout
    assert f"ours True [{prepack == '1'}]" in done.stdout


@needs_zentorch
@pytest.mark.parametrize(
    "operator, dtypes",
    [
        ("del_it", "[torch.bfloat16, torch.float32]"),
        ("lambda: False", "[torch.bfloat16, torch.float32]"),
        ("lambda: True", "[torch.bfloat16, torch.float32, torch.float16]"),
    ],
)
def test_float16_only_when_the_operator_exists_and_says_yes(run, operator, dtypes):
    """The three kinds of zentorch: too old to ask, asked on a CPU without float16, and on one with it."""
    source = (
        "from vllm.platforms import current_platform\nfrom types import SimpleNamespace\nimport torch\n"
        "class Ops: pass\nops = Ops()\n"
        + ("" if operator == "del_it" else f"ops.zentorch_is_fp16_supported = {operator}\n")
        + "import vllm_ext.platforms.zen_cpu as zen\n"
        "zen.torch = SimpleNamespace(ops=SimpleNamespace(zentorch=ops), bfloat16=torch.bfloat16,"
        " float32=torch.float32, float16=torch.float16)\n"
        "print(current_platform.supported_dtypes)\n"
    )
    done = run(*on_zen(sys.executable, "-c", source))
    assert done.stdout.splitlines()[-1] == dtypes, done.stdout + done.stderr


@needs_zentorch
def test_both_questions_of_vllm_get_the_same_answer_at_once(run):
    source = (
        "import time\nfrom vllm_ext.entrypoints import platform\nfirst = platform()\n"
        "start = time.perf_counter()\nsecond = platform()\n"
        "print(first == second, first, time.perf_counter() - start < 0.01)\n"
    )
    done = run(*on_zen(sys.executable, "-c", source))
    assert done.stdout.splitlines()[-1] == f"True {OURS} True", done.stderr
