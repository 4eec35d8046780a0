# SPDX-License-Identifier: Apache-2.0
"""The one table of environment variables: name, type, default, meaning.

Everything else derives from it: the getters merged into ``vllm.envs`` (so that vLLM neither warns of our names nor
leaves them out of its compile-cache key, and Ray carries them), ``vllm-ext doctor``, and ``docs/toggles.md``.
Standard library only: the entry points import this module while ``import vllm`` is still running.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PREFIX = "VLLM_EXT"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True)
class EnvVar:
    """One environment variable.

    kind: ``bool`` (0 or 1), ``mode`` (auto, 1 or 0) or ``path``.
    ours: False for a name that upstream vLLM defines in later releases and that we honour where it does not.
    """

    name: str
    kind: str
    default: str
    doc: str
    ours: bool = True

    @property
    def choices(self) -> tuple[str, ...]:
        return {"bool": ("0", "1"), "mode": ("auto", "1", "0"), "path": ()}[self.kind]

    def parse(self, raw: str) -> Any:
        """Return the typed value of *raw*: bool, "auto" | "1" | "0", or Path. Raises ValueError for anything else."""
        if self.kind == "path":
            if not raw:
                raise ValueError(raw)
            return Path(raw).expanduser()
        word = raw.strip().lower()
        if self.kind == "mode" and word == "auto":
            return "auto"
        if word in _TRUE:
            return "1" if self.kind == "mode" else True
        if word in _FALSE:
            return "0" if self.kind == "mode" else False
        raise ValueError(raw)


TABLE: tuple[EnvVar, ...] = (
    EnvVar("VLLM_EXT", "bool", "1", "Master switch. 0: nothing is patched, claimed or registered."),
    EnvVar(
        "VLLM_EXT_STRICT",
        "bool",
        "0",
        "1: refuse to start when a capability failed, when one switched on with =1 is not active, or when a "
        "VLLM_EXT_* name or value is not valid. 0: report it and let stock vLLM serve.",
    ),
    EnvVar(
        "VLLM_EXT_ZEN_CPU",
        "mode",
        "auto",
        "AMD Zen CPU platform (zentorch). auto: act where needed; 1: report it as an error when it cannot act; 0: off.",
    ),
    EnvVar(
        "VLLM_EXT_QUARK_MXFP4",
        "mode",
        "auto",
        "AMD Quark W4A16 MXFP4 linear layers. auto: act where vLLM has no kernel; 1: even where it has one; 0: off.",
    ),
    EnvVar(
        "VLLM_EXT_NATIVE",
        "bool",
        "1",
        "The native CPU kernels. 0: do not load or build them; MXFP4 weights are dequantized at load instead.",
    ),
    EnvVar(
        "VLLM_EXT_CACHE_DIR",
        "path",
        "~/.cache/vllm_ext",
        "Folder for a native kernel built on first use. The default follows XDG_CACHE_HOME.",
    ),
    EnvVar(
        "VLLM_ZENTORCH_WEIGHT_PREPACK",
        "bool",
        "1",
        "vLLM's own name (0.18 and later), honoured on 0.17 too: prepack linear weights for zentorch at load.",
        ours=False,
    ),
)
BY_NAME: Mapping[str, EnvVar] = {var.name: var for var in TABLE}


@dataclass(frozen=True)
class Setting:
    """The value in force, and where it comes from: ``environment``, ``default``, or ``default (…)`` with the reason."""

    name: str
    value: Any
    source: str


def _default(var: EnvVar) -> Any:
    if var.name == "VLLM_EXT_CACHE_DIR" and os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "vllm_ext"
    return var.parse(var.default)


def setting(name: str) -> Setting:
    """Return the setting of one table entry. Never raises for a bad value: the default is in force, and says so."""
    var = BY_NAME[name]
    raw = os.environ.get(name)
    if raw is None:
        return Setting(name, _default(var), "default")
    try:
        return Setting(name, var.parse(raw), "environment")
    except ValueError:
        return Setting(name, _default(var), f"default (the environment says {raw!r}, which is not valid)")


def get(name: str) -> Any:
    """Return the typed value in force of one table entry."""
    return setting(name).value


def enabled() -> bool:
    return bool(get("VLLM_EXT"))


def problems() -> list[str]:
    """One sentence for every unknown ``VLLM_EXT*`` name and every value that is not valid, each with the remedy."""
    sentences = []
    for name in sorted(os.environ):
        if name in BY_NAME:
            sentences += _value_problem(BY_NAME[name], os.environ[name])
        elif name == PREFIX or name.startswith(PREFIX + "_"):
            near = difflib.get_close_matches(name, [var.name for var in TABLE if var.ours], n=1, cutoff=0.0)[0]
            sentences.append(f"{name} is not a variable of vllm_ext and has no effect; did you mean {near}?")
    return sentences


def _value_problem(var: EnvVar, raw: str) -> list[str]:
    try:
        var.parse(raw)
    except ValueError:
        if var.kind == "path":
            return [f"{var.name} is empty, {_default(var)} is used; set it to a folder or unset it"]
        words = [*var.choices, *_TRUE, *_FALSE]
        near = difflib.get_close_matches(raw.strip().lower(), words, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        return [f"{var.name}={raw!r} is not valid, {var.default} is used; {hint}valid values: {', '.join(var.choices)}"]
    return []


def _getter(name: str) -> Callable[[], Any]:
    def read() -> Any:
        value = get(name)  # never raises: EngineCore's enable_envs_cache() calls every getter
        return str(value) if isinstance(value, Path) else value

    return read


def publish() -> None:
    """Merge the table into ``vllm.envs.environment_variables``; names that the installed release has stay its own."""
    host = sys.modules.get("vllm.envs")
    table = getattr(host, "environment_variables", None)
    if table is None:
        return
    for var in TABLE:
        table.setdefault(var.name, _getter(var.name))


def markdown() -> str:
    """Return the text of docs/toggles.md."""
    lines = [
        "# Environment variables",
        "",
        "Generated from `vllm_ext/envs.py` by `make docs`; a test keeps the two equal.",
        "",
        "| name | values | default | meaning |",
        "|---|---|---|---|",
    ]
    for var in TABLE:
        values = ", ".join(f"`{choice}`" for choice in var.choices) or "a folder"
        lines.append(f"| `{var.name}` | {values} | `{var.default}` | {var.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
