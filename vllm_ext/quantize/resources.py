# SPDX-License-Identifier: Apache-2.0
"""Enough memory and disk? Asked before anything is loaded or written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from vllm_ext.quantize.errors import InputError
from vllm_ext.quantize.staging import nearest_parent

_BASE = 1_500_000_000
"""Bytes that Python, torch, transformers and amd-quark hold before a model is loaded, with a margin (0.5 GB of their
own and 0.7 GB of mapped files measured)."""
_GROUP_BYTES = 32 // 2 + 1
"""Bytes on disk of 32 quantized weights: 16 of codes, one of scale."""


@dataclass(frozen=True)
class Need:
    """Estimated peaks in bytes."""

    memory: int
    disk: int


def human(size: float) -> str:
    """Bytes as 1.2 kB, 3.4 MB, 5.6 GB (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if abs(size) < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def estimate(parameters: int, quantized: int, largest: int, gguf: bool) -> Need:
    """Peaks for a model of *parameters* numbers, *quantized* of them in quantized layers.

    *largest* is the number of weights in the largest quantized layer: amd-quark works on one layer at a
    time, in several float32 copies. Scales of all layers are held in float32 until the export packs them.
    """
    model = 2 * parameters
    scales = quantized // 8
    # Reading GGUF holds the dequantized tensors beside the model that they are copied into.
    loading = model if gguf else 0
    memory = _BASE + model + max(loading, scales + 6 * 4 * largest)
    disk = 2 * (parameters - quantized) + quantized * _GROUP_BYTES // 32
    return Need(memory=memory, disk=int(disk * 1.02) + 20_000_000)


def check(need: Need, out: Path) -> None:
    """Raise InputError when memory or the disk of *out* does not suffice for *need*."""
    parent = nearest_parent(out)
    free = shutil.disk_usage(parent).free
    if free < need.disk:
        raise InputError(
            f"The output needs about {human(need.disk)} of disk and {parent} has {human(free)} free: "
            "free some, or give an OUT on another disk."
        )
    available = available_memory()
    if available < need.memory:
        raise InputError(
            f"Quantizing this model needs about {human(need.memory)} of memory and {human(available)} is available: "
            "end other programs, add swap, or use a larger machine."
        )


def available_memory() -> int:
    """Bytes this process can still take: free memory and swap, or what is left of the container's limit."""
    import psutil

    available = psutil.virtual_memory().available + psutil.swap_memory().free
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return int(min(available, int(limit.read_text()) - int(used.read_text())))
    except (OSError, ValueError):  # no cgroup v2, or the limit is "max"
        return int(available)
