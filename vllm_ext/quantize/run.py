# SPDX-License-Identifier: Apache-2.0
"""The whole run, in order: check, load, quantize, write, verify, publish."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vllm_ext.quantize import configs, layers, requirements, resources, staging, verify
from vllm_ext.quantize.progress import Progress
from vllm_ext.quantize.source import resolve


@dataclass(frozen=True)
class QuantizeReport:
    """What a run did. Sizes in bytes: *source_bytes* and *output_bytes* are weight files on disk,
    *bf16_bytes* is the whole model in bf16, *linear_bf16_bytes* the quantized layers in bf16 and
    *linear_packed_bytes* the same layers as codes and scales."""

    output: Path
    architecture: str
    source_bytes: int
    bf16_bytes: int
    output_bytes: int
    linear_bf16_bytes: int
    linear_packed_bytes: int
    quantized_layers: int
    quantized_parameters: int
    bf16_parameters: int
    excluded_layers: list[str]
    seconds: float
    warnings: list[str] = field(default_factory=list)


def quantize_checkpoint(
    source: str, output: Path, exclude: Sequence[str] = ("lm_head",), force: bool = False, progress: bool = False
) -> QuantizeReport:
    """Quantize *source* (folder, GGUF file or hub id) into the new folder *output*.

    *exclude* are globs over layer names; the output layer and expert routers always stay bf16. *progress* shows
    steps on stderr. Raises InputError when something cannot be used as given, before anything is written, and
    QuantizeError when the run fails; *output* is then as it was.
    """
    started = time.monotonic()
    requirements.check_packages()
    for note in staging.recover(output):
        Progress(0, progress).say(note)
    if Path(source).expanduser().exists():
        staging.check_output(output, Path(source).expanduser(), force)
    origin = resolve(source, progress)
    staging.check_output(output, origin.path, force)
    if origin.kind == "gguf":
        requirements.check_gguf_reader()

    # Heavy imports (torch, transformers) start here.
    from vllm_ext.quantize import model as models
    from vllm_ext.quantize import quark_export

    _quiet_transformers()
    steps = Progress(4 + quark_export.STEPS, progress)
    steps.begin("inspect the model")
    outline = models.outline(origin)
    choice = layers.choose(outline.linears, outline.head, exclude)
    chosen = set(choice.quantized)
    quantized = [layer for layer in outline.linears if layer.name in chosen]
    numbers = [layer.out_features * layer.in_features for layer in quantized]
    need = resources.estimate(outline.parameters, sum(numbers), max(numbers), origin.kind == "gguf")
    resources.check(need, output)
    steps.begin("load amd-quark (it compiles its C++ code the first time)")
    quark_export.import_quark()
    steps.begin(f"load {outline.parameters / 1e6:.1f} million parameters in bf16")
    model = models.load(origin, steps)
    models.check_finite(model, choice.quantized)
    warnings: list[str] = []
    if outline.expert_parameters:
        warnings.append(
            f"{outline.expert_parameters / 1e6:.1f} million parameters are fused experts and stay bf16: amd-quark "
            "quantizes linear layers only."
        )
    folder = origin.path if origin.kind == "folder" else None
    with staging.staged(output) as new:
        quark_export.export(model, choice.kept, new, steps)
        del model
        steps.begin("write and check the files beside it")
        if not models.save_tokenizer(origin, new):
            warnings.append("The source has no tokenizer files: vLLM needs --tokenizer to serve the output.")
        configs.finish(new, folder, [*choice.kept, *outline.others])
        warnings += verify.check(new, folder, quantized)
        staging.make_readable(new)
        size = sum(path.stat().st_size for path in new.glob("*.safetensors"))
    steps.end()
    return QuantizeReport(
        output=output,
        architecture=outline.architecture,
        source_bytes=origin.size,
        bf16_bytes=2 * outline.parameters,
        output_bytes=size,
        linear_bf16_bytes=2 * sum(numbers),
        linear_packed_bytes=sum(n // 2 + n // layers.GROUP for n in numbers),
        quantized_layers=len(quantized),
        quantized_parameters=sum(numbers),
        bf16_parameters=outline.parameters - sum(numbers),
        excluded_layers=choice.kept,
        seconds=time.monotonic() - started,
        warnings=warnings,
    )


def _quiet_transformers() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
