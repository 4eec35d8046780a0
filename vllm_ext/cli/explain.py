# SPDX-License-Identifier: Apache-2.0
"""``vllm-ext explain ID``: what a capability is, what stock vLLM does, and its state here."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from typing import Any

from vllm_ext import envs, features
from vllm_ext.cli import facts


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("explain", help="what a capability does, and its state on this host")
    parser.add_argument("id", metavar="ID", help="one of: " + ", ".join(features.BY_ID))
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    feature = features.BY_ID.get(args.id)
    if feature is None:
        near = difflib.get_close_matches(args.id, features.BY_ID, n=1, cutoff=0.0)[0]
        known = ", ".join(features.BY_ID)
        print(f"vllm-ext explain: no capability {args.id!r}; did you mean {near}? There are: {known}", file=sys.stderr)
        return 2
    toggle = envs.setting(feature.toggle)
    rows = [
        ("without it", feature.stock),
        ("with it", feature.effect),
        ("here", _state_here(feature.id)),
        ("switch", f"{feature.toggle}={toggle.value} ({toggle.source}); {envs.BY_NAME[feature.toggle].doc}"),
        ("page", feature.page),
    ]
    print(f"{feature.id}: {feature.title}\n")
    for label, text in rows:
        print(textwrap.fill(text, 100, initial_indent=f"{label:<12}", subsequent_indent=" " * 12))
    return 0


def _state_here(feature_id: str) -> str:
    for capability in facts.collect()["capabilities"]:
        if capability["id"] == feature_id:
            return f"{capability['state']}: {capability['reason']}"
    raise AssertionError(feature_id)
