# SPDX-License-Identifier: Apache-2.0
"""The MXFP4 linear layer in the form that ``QuarkLinearMethod`` of vLLM 0.17 to 0.26 asks of ``layer.scheme``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.parameter import GroupQuantScaleParameter, PackedvLLMParameter

from vllm_ext.quant.mxfp4.format import GROUP_SIZE
from vllm_ext.quant.packed_linear import PackedLinear


class VllmExtCpuMxFp4Scheme(PackedLinear):
    """W4A16 on the CPU, one object a layer."""

    def __init__(self, layer_name: str) -> None:
        super().__init__()
        self.layer_name = layer_name

    def create_weights(
        self,
        layer: torch.nn.Module,
        output_partition_sizes: list[int],
        input_size_per_partition: int,
        weight_loader: Callable[..., None],
        **_: Any,
    ) -> None:
        """Register ``weight`` uint8 [N, K/2] and ``weight_scale`` uint8 [N, K/32]; K and N are those of this rank.

        Raises ValueError naming the layer when K is not a multiple of 32.
        """
        k, n = input_size_per_partition, sum(output_partition_sizes)
        if k % GROUP_SIZE:
            raise ValueError(
                f"{self.layer_name}: {k} inputs on this rank are not a multiple of {GROUP_SIZE}, the group of an MXFP4 "
                f"scale: choose a tensor-parallel size that leaves a multiple of {GROUP_SIZE}"
            )
        layer.logical_widths = output_partition_sizes
        place = {"input_dim": 1, "output_dim": 0, "weight_loader": weight_loader}
        codes, scales = (torch.empty(n, k // each, dtype=torch.uint8) for each in (2, GROUP_SIZE))
        layer.register_parameter("weight", PackedvLLMParameter(data=codes, packed_dim=1, packed_factor=2, **place))
        layer.register_parameter("weight_scale", GroupQuantScaleParameter(data=scales, **place))
