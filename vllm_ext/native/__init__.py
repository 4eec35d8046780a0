# SPDX-License-Identifier: Apache-2.0
"""The native CPU kernels: built from csrc/ (`build`), found and loaded (`load`), as the toggles say (here)."""

from __future__ import annotations

import os
from pathlib import Path

from vllm_ext import envs
from vllm_ext.native.build import can_build
from vllm_ext.native.load import NativeStatus, load_native


def status(allow_build: bool = True) -> NativeStatus:
    """Load the kernels into this process, building them on first use unless *allow_build* is False. Never raises."""
    if not envs.get("VLLM_EXT_NATIVE"):
        return NativeStatus(available=False, path="none", origin="none", file=None, reason="off by VLLM_EXT_NATIVE=0")
    return load_native(envs.get("VLLM_EXT_CACHE_DIR"), allow_build)


def describe() -> str:
    """Return the kernels' state as a few words, without building anything."""
    found = status(allow_build=False)
    if found.available:
        return f"native kernel {found.path}"
    if envs.get("VLLM_EXT_NATIVE") and can_build() and _can_write(envs.get("VLLM_EXT_CACHE_DIR")):
        return "native kernel to be built on first use"
    return "weights are dequantized at load, see doctor for the reason"


def _can_write(folder: Path) -> bool:
    """Whether *folder* exists, or could be made, and takes files."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return existing.is_dir() and os.access(existing, os.W_OK)
