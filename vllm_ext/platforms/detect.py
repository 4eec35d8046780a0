# SPDX-License-Identifier: Apache-2.0
"""Which platform class this host should get: pure detection, no import of vLLM.

vLLM asks twice while it is being imported; the answer is made once per process.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

from vllm_ext import envs, host
from vllm_ext.features import Outcome, State
from vllm_ext.log import logger

ZEN_PLATFORM = "vllm_ext.platforms.zen_cpu.ZenCpuPlatform"
PLAIN_PLATFORM = "vllm.platforms.cpu.CpuPlatform"


@dataclass(frozen=True)
class Decision:
    """platform_class: dotted path to claim, or None to stand aside. outcome: the state of ``zen_cpu`` and why."""

    platform_class: str | None
    outcome: Outcome


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, frozenset[str]]:
    """Return (vendor_id, flags) of the first CPU; ("", empty) where the file does not say."""
    vendor, flags = "", frozenset[str]()
    try:
        text = cpuinfo.read_text()
    except OSError:
        return vendor, flags
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            vendor = value.strip()
        elif key.strip() == "flags":
            return vendor, frozenset(value.split())
    return vendor, flags


_decision: Decision | None = None
_ASKING = Decision(None, Outcome(State.NOT_APPLICABLE, "the other platform plugins are still being asked"))


def decide() -> Decision:
    """Decide once per process; both calls of vLLM get the same answer."""
    global _decision
    if _decision is None:
        _decision = _ASKING  # the answer for a rival that asks every plugin, as we do
        try:
            _decision = _decide()
        except Exception:
            _decision = None
            raise
    return _decision


def _decide() -> Decision:
    def aside(state: State, reason: str) -> Decision:
        return Decision(None, Outcome(state, reason))

    if envs.get("VLLM_EXT_ZEN_CPU") == "0":
        return aside(State.OFF, "by VLLM_EXT_ZEN_CPU=0")
    vllm = host.installed_vllm()
    if vllm is None or not vllm.cpu_build:
        found = f"{vllm.distribution} {vllm.version}" if vllm else "no vLLM found"
        return aside(State.NOT_APPLICABLE, f"not a CPU build of vLLM ({found})")
    vendor, flags = cpu_flags()
    if vendor != "AuthenticAMD" or "avx512f" not in flags:
        what = f"{vendor or 'unknown vendor'}, {'with' if 'avx512f' in flags else 'without'} AVX-512"
        return aside(State.NOT_APPLICABLE, f"not an AMD CPU with AVX-512 ({what})")
    rival = claiming_rival()
    if rival is not None:
        return aside(State.NOT_APPLICABLE, f"the platform plugin {rival!r} claims this host; vLLM allows one")
    return _with_zentorch()


def claiming_rival() -> str | None:
    """Return the name of another out-of-tree platform plugin that would claim this host, or None."""
    for entry in host.rival_platform_plugins():
        try:
            if entry.load()() is not None:
                return entry.name
        except Exception:  # vLLM counts a raising plugin as not active
            logger.debug("vllm_ext: platform plugin %s raised", entry.name, exc_info=True)
    return None


def _with_zentorch() -> Decision:
    torch_release = host.torch_release()
    remedy = f"pip install 'zentorch=={torch_release}.*'"
    try:
        importlib.import_module("zentorch")
    except ImportError as error:
        if host.zentorch_version() is None:
            return Decision(None, Outcome(State.NOT_APPLICABLE, f"zentorch is not installed: {remedy}"))
        return _broken(f"{type(error).__name__}: {_first_line(error)}", remedy)
    except Exception as error:  # an ABI mismatch is an OSError from the dynamic linker
        return _broken(f"{type(error).__name__}: {_first_line(error)}", remedy)
    reason = f"zentorch {host.zentorch_version()} on AMD with AVX-512"
    return Decision(ZEN_PLATFORM, Outcome(State.ACTIVE, reason))


def _broken(error: str, remedy: str) -> Decision:
    # Claimed all the same: 0.18 to 0.30 let the OSError out of their own detection and then know no device at all.
    reason = (
        f"zentorch {host.zentorch_version()}, built for torch {host.zentorch_fits_torch() or '(unknown)'}, "
        f"does not load beside torch {host.version_of('torch')} ({error}): {remedy}; "
        "vLLM serves on its plain CPU platform"
    )
    return Decision(PLAIN_PLATFORM, Outcome(State.UNSUPPORTED, reason))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]
