# SPDX-License-Identifier: Apache-2.0
"""Which linear layers are quantized: pure decisions over names and sizes, no torch."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_ext.quantize.errors import InputError

GROUP = 32
"""Weights along in_features that share one scale byte."""

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
"""Sibling layers that vLLM loads into one layer, which has one scheme."""

ROUTERS = frozenset({"gate", "router", "shared_expert_gate"})
"""Last name of the layers that pick experts: vLLM builds most of them without a quantization config."""


@dataclass(frozen=True)
class Linear:
    """One linear layer: its weight is [out_features, in_features]."""

    name: str
    out_features: int
    in_features: int

    @property
    def leaf(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """Everything before the last part of the name."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Choice:
    """Names of the layers to quantize and of those that stay bf16, in model order."""

    quantized: list[str]
    kept: list[str]


def choose(linears: Sequence[Linear], head: str | None, patterns: Iterable[str]) -> Choice:
    """Apply the user's globs to *linears*.

    *head* is the output layer's name: it always stays bf16, since vLLM has no quantized one; routers too.
    Raises InputError for a pattern that matches nothing, for a fused layer excluded in part, for an
    in_features that groups of 32 do not divide, and when nothing is left to quantize.
    """
    kept = {layer.name for layer in linears if layer.name == head or layer.leaf in ROUTERS}
    candidates = len(linears) - len(kept)
    if not candidates:
        raise InputError(
            "The model has no torch.nn.Linear layer that amd-quark could quantize (GPT-2's Conv1D and fused "
            "experts are none): quantize another model, or serve this one as it is."
        )
    for pattern in patterns:
        matched = {layer.name for layer in linears if fnmatch.fnmatchcase(layer.name, pattern)}
        # The documented default; a model whose head has another name, or none, is no error.
        if not matched and pattern != "lm_head":
            raise InputError(_no_match(pattern, linears))
        kept |= matched
    _check_fused(linears, kept)
    quantized = [layer for layer in linears if layer.name not in kept]
    _check_group(quantized)
    if not quantized:
        raise InputError(
            f"--exclude leaves none of the model's {candidates} linear layers to quantize: give fewer patterns."
        )
    return Choice([layer.name for layer in quantized], [layer.name for layer in linears if layer.name in kept])


def _no_match(pattern: str, linears: Sequence[Linear]) -> str:
    globs = dict.fromkeys("*." + ".".join(layer.name.split(".")[-2:]) for layer in linears if "." in layer.name)
    leaves = dict.fromkeys(f"*.{layer.leaf}" for layer in linears if "." in layer.name)
    names = [*leaves, *globs, *(layer.name for layer in linears)]
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4) or [*leaves][:3]
    return (
        f"--exclude {pattern!r} matches none of the model's {len(linears)} linear layers "
        f"(patterns are globs over the whole name): the nearest are {', '.join(map(repr, near))}."
    )


def _check_fused(linears: Sequence[Linear], kept: set[str]) -> None:
    names = {layer.name for layer in linears}
    for layer in linears:
        for group in FUSED:
            if layer.leaf != group[0]:
                continue
            prefix = f"{layer.parent}." if layer.parent else ""
            siblings = [prefix + leaf for leaf in group if prefix + leaf in names]
            inside = [name for name in siblings if name in kept]
            if 0 < len(inside) < len(siblings):
                rest = [name for name in siblings if name not in kept]
                remedy = " ".join(f"'*.{leaf}'" for leaf in group)
                raise InputError(
                    f"--exclude keeps {', '.join(inside)} in bf16 but not {', '.join(rest)}, and vLLM fuses them "
                    f"into one layer: exclude all of them (--exclude {remedy}) or none."
                )


def _check_group(layers: Sequence[Linear]) -> None:
    bad = [layer for layer in layers if layer.in_features % GROUP]
    if bad:
        remedy = " ".join(dict.fromkeys(f"'*.{layer.leaf}'" for layer in bad))
        raise InputError(
            f"{bad[0].name} has in_features {bad[0].in_features}, not a multiple of {GROUP} "
            f"({len(bad)} such layers): MXFP4 scales {GROUP} weights at a time; keep them in bf16 with "
            f"--exclude {remedy}."
        )
