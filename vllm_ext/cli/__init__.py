# SPDX-License-Identifier: Apache-2.0
"""The command ``vllm-ext``, one file for each subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from vllm_ext import __version__
from vllm_ext.cli import doctor, explain, quantize


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="vllm-ext", description="Tools of the vLLM plugin vllm_ext.")
    parser.add_argument("--version", action="version", version=f"vllm-ext {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (doctor, explain, quantize):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    code: int = args.func(args)
    return code
