# SPDX-License-Identifier: Apache-2.0
"""Checks a Quark MXFP4 checkpoint folder by its safetensors headers, before any tensor is read.

What vLLM itself says of such files names neither layer nor file. Standard library only.
Format: https://github.com/huggingface/safetensors#format (8 bytes header length, JSON header, data).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MAX_HEADER = 100 << 20  # the safetensors library's own limit
_REMEDY = "copy or export the checkpoint again"


def read_header(file: Path) -> dict[str, Any]:
    """Return {tensor name: {"dtype", "shape", "data_offsets"}} of a safetensors file.

    Raises ValueError naming the file when it is cut short or is not such a file.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 0 < length <= min(_MAX_HEADER, size - 8):
            raise ValueError(f"{file} is not a whole safetensors file ({size} bytes): {_REMEDY}")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
        except ValueError as error:
            raise ValueError(f"{file} has an unreadable safetensors header ({error}): {_REMEDY}") from error
    header.pop("__metadata__", None)
    expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < expected:
        raise ValueError(f"{file} is truncated: {size} bytes, its header needs {expected}: {_REMEDY}")
    return header


def check_folder(folder: Path) -> None:
    """Raise ValueError with one sentence for the first thing in *folder* that cannot be served as W4A16 MXFP4."""
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= read_header(file)
    for name, scale in tensors.items():
        layer, _, kind = name.rpartition(".")
        if kind != "weight_scale":
            continue
        if layer.split(".")[-1] == "lm_head":
            raise ValueError(
                f"{layer} is quantized (it has {name}), which vLLM cannot load: quantize again with lm_head excluded "
                "(vllm-ext quantize does so)"
            )
        weight = tensors.get(f"{layer}.weight")
        if weight is not None and weight["dtype"] == "U8" and len(weight["shape"]) == 2:
            _check_pair(layer, weight, scale)


def _check_pair(layer: str, weight: dict[str, Any], scale: dict[str, Any]) -> None:
    """Check uint8 codes [N, K/2] against their e8m0 scales [N, ceil(K/32)]."""
    shape = weight["shape"]
    wanted = [shape[0], -(-shape[1] // 16)]
    if scale["dtype"] != "U8" or scale["shape"] != wanted:
        raise ValueError(
            f"{layer}.weight_scale is {scale['dtype']} {scale['shape']}, but {layer}.weight U8 {shape} needs "
            f"U8 {wanted}: {_REMEDY}"
        )
