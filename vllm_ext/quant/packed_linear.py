# SPDX-License-Identifier: Apache-2.0
"""A W4A16 MXFP4 linear layer on the CPU: what is done with its tensors once vLLM has loaded them, on every release."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

from vllm_ext import log, native
from vllm_ext.quant import checkpoint
from vllm_ext.quant.mxfp4 import cpu, reference
from vllm_ext.quant.mxfp4.format import check_tensors

_checked_folders: set[Path] = set()


class PackedLinear:
    """Packed weights, activations as they come. Made once for every layer, while vLLM builds the model."""

    def __init__(self) -> None:
        _check_checkpoint_once()
        self.native = native.status()
        if not self.native.available:
            log.once(
                logging.WARNING,
                f"vllm_ext: no native MXFP4 kernel ({self.native.reason}); weights are dequantized at load, "
                "which takes four times the memory",
            )

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Repack ``layer.weight`` uint8 [N, K/2] and ``layer.weight_scale`` uint8 [N, K/32] in place.

        Raises ValueError naming the layer for a tensor that is not MXFP4. Called once after every load, also a second
        one into the same layer: vLLM then hands over freshly loaded tensors in checkpoint order.
        """
        name = getattr(layer, "prefix", "") or type(layer).__name__
        weight = layer.weight.data
        scale = layer.weight_scale.data
        check_tensors(weight, scale, name)
        layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
        if self.native.available:
            cpu.pack_(weight, scale)
        else:
            layer.cpu_linear = _dequantized_linear(weight, scale)

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x: [..., K] bf16, fp16 or fp32; bias: [N] or None. Returns [..., N] in x.dtype."""
        if self.native.available:
            return cpu.linear(x, layer.weight, layer.weight_scale, bias)
        result: torch.Tensor = layer.cpu_linear(x, bias)
        return result


def _dequantized_linear(
    weight: torch.Tensor, scale: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]:
    """Return ``f(x, bias)`` over the dequantized weight, through the GEMM that vLLM takes for unquantized layers here.

    MXFP4 values are exact in bf16; a model in another dtype computes in fp32, since they leave the range of fp16.
    """
    dtype = torch.bfloat16 if torch.get_default_dtype() is torch.bfloat16 else torch.float32
    dense = reference.dequantize(weight, scale, dtype)
    holder = SimpleNamespace(weight=torch.nn.Parameter(dense, requires_grad=False))
    dispatch_cpu_unquantized_gemm(holder, remove_weight=True)

    def linear(x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        bias = bias if bias is None else bias.to(dtype)
        result: torch.Tensor = holder.cpu_linear(x.to(dtype), holder.weight, bias)
        return result.to(x.dtype)

    return linear


def _check_checkpoint_once() -> None:
    """Look at the headers of the checkpoint's files before anything of it is loaded; once per process and folder."""
    model = getattr(get_current_vllm_config().model_config, "model", None)
    if model is not None and (folder := Path(model)).is_dir() and folder not in _checked_folders:
        _checked_folders.add(folder)
        checkpoint.check_folder(folder)
