# SPDX-License-Identifier: Apache-2.0
"""The MXFP4 linear kernel class in the form that vLLM 0.27 and later choose from."""

from __future__ import annotations

from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearKernel, MxFp4LinearLayerConfig

from vllm_ext.quant.packed_linear import PackedLinear


class VllmExtCpuMxFp4LinearKernel(PackedLinear, MxFp4LinearKernel):
    """W4A16 on the CPU.

    Takes weight-only layers and nothing else: with an activation key the model was made for quantized activations, and
    computing it without them would change its numbers.
    """

    def __init__(self, config: MxFp4LinearLayerConfig) -> None:
        MxFp4LinearKernel.__init__(self, config)
        PackedLinear.__init__(self)

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, config: MxFp4LinearLayerConfig) -> tuple[bool, str | None]:
        if config.activation_quant_key is not None:
            return (
                False,
                f"weight-only layers (W4A16) only, this one quantizes activations: {config.activation_quant_key}",
            )
        return True, None
