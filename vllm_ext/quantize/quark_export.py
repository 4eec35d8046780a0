# SPDX-License-Identifier: Apache-2.0
"""The amd-quark part: round the chosen layers of a loaded model to MXFP4 and write them packed."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ext.quantize import requirements
from vllm_ext.quantize.errors import InputError, QuantizeError
from vllm_ext.quantize.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STEPS = 4
"""Steps that export() begins."""

_LOOPS = {
    "Calibrating all params": ("choose the scales", None),
    "Freezing quantized modules": ("round the weights", None),
    "Converting QuantLinear for export": ("pack the weights", "write the checkpoint"),
}
"""amd-quark's own bars, by description: the step that each is, and the step that follows it."""

_HARMLESS = ("Cannot determine source model path", "Model generation_config has sampling fields")
"""Warnings about things that configs.finish() settles, or that do not apply to GGUF."""


def import_quark() -> None:
    """Import amd-quark, quietly; it compiles its C++ code the first time.

    Raises InputError when it cannot for want of a compiler or ninja, QuantizeError for other reasons.
    """
    lacking = requirements.find_build_tools()
    try:
        from quark.common.utils.log import ScreenLogger

        ScreenLogger.set_shared_level(logging.WARNING)
        importlib.import_module("quark.torch")
    except Exception as error:
        if lacking is not None:
            raise InputError(lacking) from error
        reason = str(error).strip().partition("\n")[0]
        raise QuantizeError(
            f"amd-quark could not be loaded ({type(error).__name__}: {reason}): check its C++ compiler and that its "
            "version fits the installed torch; --verbose shows the whole error."
        ) from error
    logging.getLogger("quark.torch.export.safetensors_screen").addFilter(
        lambda record: not any(text in record.getMessage() for text in _HARMLESS)
    )


def export(model: PreTrainedModel, exclude: list[str], out: Path, progress: Progress) -> None:
    """Quantize every torch.nn.Linear of *model* but those named in *exclude*, and write the checkpoint to *out*.

    Weights become fp4 (e2m1) with one e8m0 scale per 32 along in_features; activations stay as they are.
    *model* is consumed: its layers are replaced by packed ones.
    """
    import torch
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import OCP_MXFP4Spec, QConfig, QLayerConfig

    weight = OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec()
    config = QConfig(global_quant_config=QLayerConfig(weight=weight), exclude=exclude)
    with progress.adopt(("quark.",), _LOOPS), torch.no_grad():
        quantizer = ModelQuantizer(config)
        model = quantizer.quantize_model(model, None)
        model = quantizer.freeze(model)
        with _model_renames_kept(model):
            export_safetensors(
                model, str(out), custom_mode="quark", weight_format="real_quantized", pack_method="reorder"
            )


@contextmanager
def _model_renames_kept(model: PreTrainedModel) -> Iterator[None]:
    """Tensors are saved under the names they had in the source.

    transformers 5 renames and fuses tensors while loading and undoes it while saving, by a list on the model
    that amd-quark's exporter replaces by its own; here its own is appended to the model's.
    """
    from quark.torch.export import api

    original = getattr(api, "QUARK_WEIGHT_CONVERSIONS", None)
    conversions = getattr(model, "_weight_conversions", None)
    if original is None or not conversions:
        yield
        return
    api.QUARK_WEIGHT_CONVERSIONS = [*conversions, *original]
    try:
        yield
    finally:
        api.QUARK_WEIGHT_CONVERSIONS = original
