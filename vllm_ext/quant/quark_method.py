# SPDX-License-Identifier: Apache-2.0
"""Which layers of a Quark model get our scheme on vLLM 0.17 to 0.26, where there is no table of kernels to join."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vllm_ext.patching import Patch
from vllm_ext.quant.mxfp4.format import GROUP_SIZE

QUARK = "vllm.model_executor.layers.quantization.quark"


def is_weight_only_mxfp4(layer_config: Mapping[str, Any]) -> bool:
    """Return whether a layer's entry in Quark's configuration means MXFP4 weights and nothing else quantized."""
    weight = layer_config.get("weight")
    return (
        isinstance(weight, Mapping)
        and weight.get("dtype") == "fp4"
        and weight.get("qscheme") == "per_group"
        and weight.get("group_size") == GROUP_SIZE
        and weight.get("scale_format") == "e8m0"
        and not any(layer_config.get(other) for other in ("input_tensors", "output_tensors", "bias"))
    )


def _make(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_quant_method(self: Any, layer: torch.nn.Module, prefix: str) -> Any:
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.model_executor.layers.quantization.quark.quark import QuarkLinearMethod, should_ignore_layer

        from vllm_ext.quant.quark_scheme import VllmExtCpuMxFp4Scheme

        # Quantizes excluded attention layers of DeepSeek models, and their activations, on the fly.
        if is_weight_only_mxfp4(self.quant_config["global_quant_config"]):
            self.dynamic_mxfp4_quant = False
        if (
            isinstance(layer, LinearBase)
            and not should_ignore_layer(
                prefix, ignore=self.quant_config.get("exclude") or [], fused_mapping=self.packed_modules_mapping
            )
            and is_weight_only_mxfp4(self._find_matched_config(prefix, layer))
        ):
            layer.scheme = VllmExtCpuMxFp4Scheme(prefix)
            # vLLM's own class: its name decides which weight loader a layer gets
            return QuarkLinearMethod(self)
        return original(self, layer, prefix)

    return get_quant_method


GET_QUANT_METHOD = Patch(
    id="quark_mxfp4.get_quant_method",
    targets=(f"{QUARK}.quark:QuarkConfig.get_quant_method",),
    parameters=("self", "layer", "prefix"),
    releases="<0.27",
    native=f"{QUARK}.schemes.quark_ocp_mx:init_mxfp4_linear_kernel",
    make=_make,
    reason=(
        "Quark's schemes know no kernel table before 0.27, and none of them computes weight-only MXFP4 on a CPU: "
        "TypeError while the model is built up to 0.18, an error at the first forward up to 0.26."
    ),
    upstream="vLLM 0.27.0 brought init_mxfp4_linear_kernel to QuarkOCP_MX",
    remove_when="the lowest supported vLLM chooses Quark's MXFP4 kernels from a table",
)
