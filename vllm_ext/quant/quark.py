# SPDX-License-Identifier: Apache-2.0
"""The capability ``quark_mxfp4``: puts our kernel into vLLM's table of MXFP4 linear kernels."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

from vllm_ext import native
from vllm_ext.features import Outcome, State
from vllm_ext.log import logger
from vllm_ext.patching import PatchError
from vllm_ext.quant.weight_errors import NAMES_LAYER

KERNEL_TABLE = "vllm.model_executor.kernels.linear"


def activate(mode: str) -> Outcome:
    """Register the kernel for the CPU platform.

    mode "auto" stands aside where the release has a weight-only MXFP4 kernel for the CPU; "1" goes before it.
    """
    from vllm.platforms import PlatformEnum, current_platform

    if not current_platform.is_cpu():
        return Outcome(
            State.NOT_APPLICABLE, f"this kernel is for the CPU; the platform is {current_platform.device_name}"
        )
    table = importlib.import_module(KERNEL_TABLE)
    missing = _missing_seam(table)
    if missing:
        return Outcome(State.UNSUPPORTED, f"{missing}; vLLM 0.27 or later is needed")

    from vllm_ext.quant.quark_kernel import VllmExtCpuMxFp4LinearKernel as Kernel

    if Kernel not in (registered := table._POSSIBLE_MXFP4_KERNELS.get(PlatformEnum.CPU, [])):
        rival = _stock_kernel(registered)
        if rival is not None and mode == "auto":
            return Outcome(State.NATIVE, f"this vLLM has {rival} for the CPU")
        try:
            NAMES_LAYER.apply()
        except PatchError:  # it only words errors; the kernel works without it
            logger.debug("vllm_ext: errors at weight loading will not name the layer", exc_info=True)
        table.register_linear_kernel(Kernel, PlatformEnum.CPU, "mxfp4")
        if rival is not None:  # the public function appends, and the first kernel that fits wins
            kernels = table._POSSIBLE_MXFP4_KERNELS[PlatformEnum.CPU]
            kernels.insert(0, kernels.pop())
    return Outcome(State.ACTIVE, f"hook installed: it acts when a model needs it; {native.describe()}")


def _missing_seam(table: ModuleType) -> str | None:
    """Return what this release lacks for the registration to have an effect, or None."""
    if not hasattr(table, "register_linear_kernel") or not hasattr(table, "_POSSIBLE_MXFP4_KERNELS"):
        return f"{KERNEL_TABLE} has no table of MXFP4 kernels"
    choose = getattr(table, "init_mxfp4_linear_kernel", None)
    if choose is None or "activation_quant_key" not in inspect.signature(choose).parameters:
        return "its MXFP4 kernels do not tell weight-only layers apart"
    scheme = importlib.import_module("vllm.model_executor.layers.quantization.quark.schemes.quark_ocp_mx")
    if not hasattr(scheme, "init_mxfp4_linear_kernel"):
        return "its Quark scheme does not use the table of MXFP4 kernels"
    return None


def _stock_kernel(registered: list[type]) -> str | None:
    """Return the name of the first kernel in the table that would take a weight-only layer here, or None."""
    from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearLayerConfig

    weight_only = MxFp4LinearLayerConfig(activation_quant_key=None)
    for kernel in registered:
        if kernel.is_supported()[0] and kernel.can_implement(weight_only)[0]:  # type: ignore[attr-defined]
            return kernel.__name__
    return None
