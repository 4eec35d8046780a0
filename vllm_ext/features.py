# SPDX-License-Identifier: Apache-2.0
"""The catalogue of capabilities, and the one state each is in.

Standard library only at import. A capability's module is imported when it is activated, never before.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum

from vllm_ext import envs
from vllm_ext.log import logger, when_configured


class State(str, Enum):
    """The states of design principle 1."""

    ACTIVE = "active"
    NATIVE = "native"
    OFF = "off"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """A state with its reason in plain words."""

    state: State
    reason: str


@dataclass(frozen=True)
class Feature:
    """One capability.

    id: as in logs and `vllm-ext explain`. toggle: its variable. module: has ``activate(mode: str) -> Outcome``, where
    mode is "auto" or "1"; called once per process from the general entry point, may raise.
    title, stock, effect: what it is, what stock vLLM does without it, what it changes; `vllm-ext explain` prints them.
    page: its page in the docs.
    """

    id: str
    toggle: str
    module: str
    title: str
    stock: str
    effect: str
    page: str


CATALOGUE: tuple[Feature, ...] = (
    Feature(
        id="zen_cpu",
        toggle="VLLM_EXT_ZEN_CPU",
        module="vllm_ext.platforms.zen_state",
        title="AMD Zen CPU platform through zentorch",
        stock=(
            "0.17 has no Zen platform; 0.18 to 0.30 stop with 'Failed to infer device type' when zentorch was built "
            "for another torch; 0.33 calls an operator that older zentorch lacks."
        ),
        effect=(
            "Claims the platform on an AMD CPU with AVX-512 where zentorch loads: extends vLLM's own ZenCpuPlatform, "
            "or brings the zentorch linear dispatch where there is none. Where zentorch does not load, vLLM serves on "
            "its plain CPU platform and the reason names the zentorch to install."
        ),
        page="docs/zen_cpu.md",
    ),
    Feature(
        id="quark_mxfp4",
        toggle="VLLM_EXT_QUARK_MXFP4",
        module="vllm_ext.quant.quark",
        title="AMD Quark W4A16 MXFP4 linear layers on the CPU",
        stock=(
            "No release can run such a model on a CPU; 0.27 and later stop with 'Failed to find a kernel that can "
            "implement the MXFP4 linear layer' and an empty list of reasons."
        ),
        effect=(
            "Registers a weight-only kernel in vLLM's MXFP4 table. Weights stay packed at 4.25 bits; the native kernel "
            "multiplies bf16, fp16 or fp32 activations with them exactly, without quantizing the activations."
        ),
        page="docs/quark_mxfp4.md",
    ),
)
BY_ID = {feature.id: feature for feature in CATALOGUE}


class VllmExtError(RuntimeError):
    """Raised to refuse a start, only under VLLM_EXT_STRICT=1."""


_outcomes: dict[str, Outcome] = {}


def outcomes() -> dict[str, Outcome]:
    """Return the state of every capability in catalogue order; what was never activated in this process is absent."""
    return {feature.id: _outcomes[feature.id] for feature in CATALOGUE if feature.id in _outcomes}


def activate_all() -> dict[str, Outcome]:
    """Bring every capability into its state. Called once per process, from the general entry point, unless
    VLLM_EXT=0; never raises."""
    for feature in CATALOGUE:
        _outcomes[feature.id] = _activate(feature)
    return outcomes()


def _activate(feature: Feature) -> Outcome:
    mode = envs.get(feature.toggle)
    if mode == "0":
        return Outcome(State.OFF, f"by {feature.toggle}=0")
    try:
        outcome: Outcome = importlib.import_module(feature.module).activate(mode)
        return outcome
    except Exception as error:  # a capability must never take the server down
        logger.debug("vllm_ext: %s failed", feature.id, exc_info=True)
        return Outcome(State.FAILED, f"{type(error).__name__}: {error}")


def unmet(states: dict[str, Outcome]) -> list[str]:
    """One sentence for everything that is not as the user asked: a failed capability, one switched on with =1 that is
    not active, a variable that is not valid. These make doctor exit with 1 and a strict server refuse to start."""
    sentences = list(envs.problems())
    for feature in CATALOGUE:
        outcome = states.get(feature.id)
        if outcome is None:
            continue
        asked = envs.setting(feature.toggle).value == "1"
        if outcome.state is State.FAILED or (asked and outcome.state is not State.ACTIVE):
            because = f"{feature.toggle}=1 asks for it" if asked else "it should be able to act here"
            sentences.append(f"{feature.id} is {outcome.state.value} although {because}: {outcome.reason}")
    return sentences


def status_line(version: str, states: dict[str, Outcome]) -> str:
    """Return the one INFO line of a process."""
    parts = [f"{name}={outcome.state.value} ({outcome.reason})" for name, outcome in states.items()]
    return f"vllm_ext {version}: {'; '.join(parts)}. Details: vllm-ext doctor"


def report(version: str) -> None:
    """Log the status line and every unmet wish; raise VllmExtError under VLLM_EXT_STRICT=1 if there is one."""
    line = status_line(version, outcomes())
    complaints = unmet(outcomes())
    if complaints and envs.get("VLLM_EXT_STRICT"):
        raise VllmExtError("VLLM_EXT_STRICT=1 refuses to start: " + " | ".join(complaints))

    def say() -> None:
        logger.info("%s", line)
        for sentence in complaints:
            logger.warning("vllm_ext: %s", sentence)

    when_configured(say)
