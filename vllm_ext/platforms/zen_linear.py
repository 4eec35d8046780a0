# SPDX-License-Identifier: Apache-2.0
"""zentorch for unquantized linear layers on a vLLM without a Zen platform of its own (0.17)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vllm_ext import envs
from vllm_ext.patching import Patch


def zentorch_linear(weight: torch.Tensor, prepack: bool) -> Callable[..., torch.Tensor]:
    """Return ``f(x, weight, bias)`` that multiplies with *weight* through zentorch.

    weight: [N, K] bf16 or fp32; prepack: lay it out for the kernel once, here. The second argument of f is ignored, as
    vLLM passes its (by then empty) parameter there. x: [..., K]; bias: [N] or None; result: [..., N].
    """
    ops = torch.ops.zentorch
    kept = weight.detach()
    packed = prepack and hasattr(ops, "zentorch_weight_prepack_for_linear")
    if packed:
        kept = ops.zentorch_weight_prepack_for_linear(kept)

    def linear(x: torch.Tensor, _: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        result: torch.Tensor = ops.zentorch_linear_unary(x, kept, bias, is_weight_prepacked=packed)
        return result

    return linear


def _make(original: Callable[..., None]) -> Callable[..., None]:
    def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, remove_weight: bool) -> None:
        weight = layer.weight
        suits = (
            isinstance(weight, torch.Tensor)
            and not weight.is_meta
            and weight.ndim == 2
            and weight.dtype in (torch.bfloat16, torch.float32)
        )
        if not suits:
            return original(layer, remove_weight)
        layer.cpu_linear = zentorch_linear(weight, bool(envs.get("VLLM_ZENTORCH_WEIGHT_PREPACK")))
        if remove_weight:
            layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
        return None

    return dispatch_cpu_unquantized_gemm


DISPATCH = Patch(
    id="zen_cpu.linear_dispatch",
    targets=("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",),
    parameters=("layer", "remove_weight"),
    releases="<0.18",
    native="vllm.platforms.interface:Platform.is_zen_cpu",
    make=_make,
    reason="0.17 chooses the CPU GEMM in this function and has no registry for another; 0.18 asks the platform.",
    upstream="vLLM 0.18.0 brought ZenCpuPlatform",
    remove_when="the lowest supported vLLM has Platform.is_zen_cpu",
)
