# SPDX-License-Identifier: Apache-2.0
"""``vllm-ext doctor``: what is installed, what is on, and why."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from typing import Any

from vllm_ext.cli import facts

_WIDTH = 110


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is installed, what is on, and why",
        description="Exit code 1 when something that was switched on is not active, or a capability failed.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--live", action="store_true", help="report from a child process started as vLLM starts its workers"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    try:
        found = facts.collect_live() if args.live else facts.collect()
    except RuntimeError as error:
        print(f"vllm-ext doctor: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found, indent=2) if args.json else render(found))
    return 1 if found["problems"] else 0


def render(found: dict[str, Any]) -> str:
    """Return the report for a reader; complete enough to paste into an issue."""
    vllm, native, platform, cpu = found["vllm"], found["native"], found["platform"], found["cpu"]
    lines = [f"vllm_ext {found['vllm_ext']['version']}, reported by {found['vllm_ext']['process']}"]
    lines += _section(
        "host",
        [
            (
                "vLLM",
                f"{vllm['version']} (distribution {vllm['distribution']})" if vllm["version"] else "not installed",
            ),
            ("vllm command", vllm["command"]),
            *((name, version or "not installed") for name, version in found["packages"].items()),
            ("CPU", f"{cpu['vendor']} {cpu['machine']}, {cpu['cores']} cores, {' '.join(cpu['flags'])}"),
            *([("error", vllm["error"])] if vllm["error"] else []),
        ],
    )
    lines += _section(
        "platform",
        [
            ("class", str(platform["class"])),
            ("claimed by us", str(platform["claimed"] or "no")),
            ("reason", platform["reason"]),
        ],
    )
    lines += _section(
        "native kernels",
        [
            ("available", f"yes, {native['path']}, from {native['origin']}" if native["available"] else "no"),
            ("reason", native["reason"]),
            ("check", native["check"]),
        ],
    )
    lines += _section("capabilities", [(c["id"], f"{c['state']}: {c['reason']}") for c in found["capabilities"]])
    plugins = found["plugins"]
    lines += _section(
        "plugins",
        [
            *((group, ", ".join(names) or "none") for group, names in plugins["entry_points"].items()),
            ("VLLM_PLUGINS", plugins["VLLM_PLUGINS"]),
            ("VLLM_TARGET_DEVICE", plugins["VLLM_TARGET_DEVICE"]),
        ],
    )
    lines += _section("toggles", [(t["name"], f"{t['value']}  ({t['source']})") for t in found["toggles"]])
    lines += _section("problems", [("", problem) for problem in found["problems"]] or [("", "none")])
    return "\n".join(lines)


def _section(title: str, rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(label) for label, _ in rows) + 2
    lines = ["", title]
    for label, text in rows:
        lines.append(
            textwrap.fill(text, _WIDTH, initial_indent=f"  {label:<{width}}", subsequent_indent=" " * (width + 2))
        )
    return lines
