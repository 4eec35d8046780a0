# SPDX-License-Identifier: Apache-2.0
"""The capability ``quark_mxfp4``: brings our MXFP4 linear layer to where the installed vLLM looks for one."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from vllm_ext import native
from vllm_ext.features import Outcome, State
from vllm_ext.log import logger
from vllm_ext.patching import MORE, PatchError, Seam
from vllm_ext.quant.quark_method import GET_QUANT_METHOD, QUARK
from vllm_ext.quant.weight_errors import NAMES_LAYER

TABLE = "vllm.model_executor.kernels.linear"
# vLLM 0.27 and later: Quark's scheme takes the first kernel of a table that fits the layer.
KERNEL_TABLE = (
    Seam(
        id="quark_mxfp4.register_linear_kernel",
        targets=(f"{TABLE}:register_linear_kernel",),
        parameters=("kernel_class", "platform", "kernel_type"),
        releases=">=0.27",
        reason="Our kernel joins vLLM's table of MXFP4 kernels.",
    ),
    Seam(
        id="quark_mxfp4.kernel_table",
        targets=(f"{TABLE}:_POSSIBLE_MXFP4_KERNELS",),
        releases=">=0.27",
        reason="Says whether this vLLM has a kernel for the CPU, and puts ours before it where that is asked for.",
    ),
    Seam(
        id="quark_mxfp4.kernel_base",
        targets=(f"{TABLE}.mxfp4.base:MxFp4LinearKernel",),
        parameters=("config",),
        releases=">=0.27",
        reason="The base class of our kernel.",
    ),
    Seam(
        id="quark_mxfp4.layer_config",
        targets=(f"{TABLE}.mxfp4.base:MxFp4LinearLayerConfig",),
        parameters=("activation_quant_key", MORE),
        releases=">=0.27",
        reason="Tells weight-only layers from those that quantize activations.",
    ),
    Seam(
        id="quark_mxfp4.kernel_choice",
        targets=(f"{QUARK}.schemes.quark_ocp_mx:init_mxfp4_linear_kernel",),
        parameters=("activation_quant_key", MORE),
        releases=">=0.27",
        reason="Quark's scheme chooses from the table, and says what a layer quantizes.",
    ),
)
# vLLM 0.17 to 0.26: Quark's linear method passes everything on to the scheme in ``layer.scheme``.
SCHEMES = (
    GET_QUANT_METHOD,
    Seam(
        id="quark_mxfp4.get_scheme",
        targets=(f"{QUARK}.quark:QuarkConfig.get_scheme",),
        parameters=("self", "layer", "layer_name", "dynamic_mxfp4_quant"),
        releases="<0.27",
        reason="Marks the releases whose linear method passes everything on to the scheme in layer.scheme.",
    ),
    Seam(
        id="quark_mxfp4.find_matched_config",
        targets=(f"{QUARK}.quark:QuarkConfig._find_matched_config",),
        parameters=("self", "layer_name", "module"),
        releases="<0.27",
        reason="Finds what Quark's configuration says of a layer.",
    ),
    Seam(
        id="quark_mxfp4.should_ignore_layer",
        targets=(f"{QUARK}.quark:should_ignore_layer",),
        parameters=("layer_name", "ignore", "fused_mapping", MORE),
        releases="<0.27",
        reason="Says which layers stay unquantized.",
    ),
    Seam(
        id="quark_mxfp4.weight_parameter",
        targets=("vllm.model_executor.parameter:PackedvLLMParameter",),
        releases="<0.27",
        reason="Holds packed weights, and splits them for tensor parallelism.",
    ),
    Seam(
        id="quark_mxfp4.scale_parameter",
        targets=("vllm.model_executor.parameter:GroupQuantScaleParameter",),
        releases="<0.27",
        reason="Holds the scales, and splits them for tensor parallelism.",
    ),
)
DENSE_GEMM = Seam(
    id="quark_mxfp4.dense_gemm",
    targets=("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",),
    parameters=("layer", "remove_weight"),
    reason="Multiplies with dequantized weights where the native kernel cannot be had.",
)
SEAMS = (*KERNEL_TABLE, *SCHEMES, DENSE_GEMM, NAMES_LAYER)


def activate(mode: str) -> Outcome:
    """Bring our linear layer to the CPU platform: into the table of kernels, or as a scheme where there is no table.

    mode "auto" stands aside where the release has a weight-only MXFP4 kernel for the CPU; "1" goes before it.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return Outcome(
            State.NOT_APPLICABLE, f"this kernel is for the CPU; the platform is {current_platform.device_name}"
        )
    unlike_table = _missing((*KERNEL_TABLE, DENSE_GEMM))
    if unlike_table is None:
        rival = _join_table(mode)
        if rival is not None:
            return Outcome(State.NATIVE, f"this vLLM has {rival} for the CPU")
    elif (unlike_schemes := _missing((*SCHEMES, DENSE_GEMM))) is None:
        GET_QUANT_METHOD.apply()
    else:
        return Outcome(
            State.UNSUPPORTED, f"this vLLM has changed: {unlike_table}; nor is it as before: {unlike_schemes}"
        )
    try:
        NAMES_LAYER.apply()
    except PatchError:  # it only words errors; the kernel works without it
        logger.debug("vllm_ext: errors at weight loading will not name the layer", exc_info=True)
    return Outcome(State.ACTIVE, f"hook installed: it acts when a model needs it; {native.describe()}")


def _missing(seams: Iterable[Seam]) -> str | None:
    """Return what is not as declared in the installed vLLM, the first that is found, or None."""
    return next((missing for seam in seams if (missing := seam.missing()) is not None), None)


def _join_table(mode: str) -> str | None:
    """Register our kernel; or return the name of vLLM's own for the CPU, which mode "auto" leaves in its place."""
    from vllm.platforms import PlatformEnum

    from vllm_ext.quant.quark_kernel import VllmExtCpuMxFp4LinearKernel as Kernel

    table = importlib.import_module(TABLE)
    registered = table._POSSIBLE_MXFP4_KERNELS.get(PlatformEnum.CPU, [])
    if Kernel in registered:
        return None
    rival = _stock_kernel(registered)
    if rival is not None and mode == "auto":
        return rival
    table.register_linear_kernel(Kernel, PlatformEnum.CPU, "mxfp4")
    if rival is not None:  # the public function appends, and the first kernel that fits wins
        kernels = table._POSSIBLE_MXFP4_KERNELS[PlatformEnum.CPU]
        kernels.insert(0, kernels.pop())
    return None


def _stock_kernel(registered: list[type]) -> str | None:
    """Return the name of the first kernel in the table that would take a weight-only layer here, or None."""
    from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearLayerConfig

    weight_only = MxFp4LinearLayerConfig(activation_quant_key=None)
    for kernel in registered:
        if kernel.is_supported()[0] and kernel.can_implement(weight_only)[0]:  # type: ignore[attr-defined]
            return kernel.__name__
    return None
