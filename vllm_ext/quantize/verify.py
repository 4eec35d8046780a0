# SPDX-License-Identifier: Apache-2.0
"""Read a written checkpoint's headers back: is every tensor what a loader will expect?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vllm_ext.quantize.errors import QuantizeError
from vllm_ext.quantize.layers import GROUP, Linear
from vllm_ext.quantize.source import weight_files

Header = dict[str, tuple[str, tuple[int, ...]]]


def headers(folder: Path) -> Header:
    """Name to (dtype, shape) of every tensor in the safetensors files of *folder*."""
    from safetensors import safe_open

    found: Header = {}
    for path in weight_files(folder):
        if path.suffix != ".safetensors":
            continue
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), tuple(part.get_shape()))
    return found


def check(out: Path, source: Path | None, quantized: Sequence[Linear]) -> list[str]:
    """Raise QuantizeError unless every layer of *quantized* lies in *out* as packed codes and scales.

    Returns warnings, in words, on tensors whose names differ from those in *source* (None for GGUF).
    """
    written = headers(out)
    packed: set[str] = set()
    renamed = 0
    for layer in quantized:
        weight = f"{layer.name}.weight"
        expected: Header = {
            weight: ("U8", (layer.out_features, layer.in_features // 2)),
            f"{weight}_scale": ("U8", (layer.out_features, layer.in_features // GROUP)),
        }
        for name, value in expected.items():
            if name not in written:
                renamed += 1
            elif written[name] != value:
                raise QuantizeError(f"amd-quark wrote {name} as {written[name]} instead of {value}: report this model.")
        packed |= expected.keys()
    total = sum(dtype == "U8" for dtype, _ in written.values())
    if total != 2 * len(quantized):
        raise QuantizeError(
            f"amd-quark wrote {total} packed tensors for {len(quantized)} layers instead of {2 * len(quantized)}: "
            "report this model."
        )
    wrong = [name for name, (dtype, _) in written.items() if dtype not in ("U8", "BF16") and name not in packed]
    warnings = []
    if wrong:
        warnings.append(
            f"{len(wrong)} tensors are neither packed nor bf16 (first: {wrong[0]}, {written[wrong[0]][0]})."
        )
    before = headers(source) if source is not None else {}
    strange = sorted(name for name in written if name.removesuffix("_scale") not in before) if before else []
    if strange or (renamed and not before):
        warnings.append(
            f"{len(strange) or renamed} tensors have other names than in the source "
            f"(first: {strange[0] if strange else quantized[0].name}): vLLM may not find them."
        )
    return warnings
