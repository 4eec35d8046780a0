# SPDX-License-Identifier: Apache-2.0
"""`vllm-ext quantize SRC OUT`: arguments, messages and exit codes; the work is in vllm_ext.quantize."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ext.quantize.errors import QuantizeError

if TYPE_CHECKING:
    from vllm_ext.quantize.run import QuantizeReport

_INTERRUPTED = 130

_EPILOG = """\
examples:
  vllm-ext quantize ./Qwen3-0.6B ./Qwen3-0.6B-MXFP4
  vllm-ext quantize model.gguf ./model-mxfp4 --exclude '*.down_proj'
  vllm-ext quantize org/name ./name-mxfp4 --exclude '*.q_proj' '*.k_proj' '*.v_proj'

It needs amd-quark, in an environment of its own:
  python3 -m venv quark-env && quark-env/bin/pip install "vllm-ext[quark]"

exit codes: 0 done, 1 the run failed, 2 bad input; in both cases OUT is as it was.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `quantize` to the command's *subparsers*."""
    parser = subparsers.add_parser(
        "quantize",
        help="turn a Hugging Face model or a GGUF file into a Quark W4A16 MXFP4 checkpoint",
        description="Quantize the linear layers of a causal language model to MXFP4 (4.25 bits a weight) with AMD "
        "Quark, on the CPU. Activations stay 16 bits wide.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SRC", help="model folder, .gguf file, or hub id (org/name)")
    parser.add_argument("output", metavar="OUT", type=Path, help="folder to write the checkpoint to")
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        nargs="+",
        action="extend",
        help="globs over layer names to keep in bf16 (default: lm_head, which always stays bf16, as routers do)",
    )
    parser.add_argument("--force", action="store_true", help="replace OUT when it is a checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress, only warnings and errors")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from vllm_ext.quantize import requirements

    # Without "..", so that it has a name that its temporary sibling can carry.
    output = Path(os.path.abspath(args.output.expanduser()))
    try:
        requirements.check_packages()
        warning = requirements.vllm_warning()
        if warning is not None:
            print(f"warning: {warning}", file=sys.stderr)
        from vllm_ext.quantize.run import quantize_checkpoint

        report = quantize_checkpoint(
            args.source, output, args.exclude or ("lm_head",), force=args.force, progress=not args.quiet
        )
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return _INTERRUPTED
    except QuantizeError as error:
        _show(error, str(error), args.verbose)
        return error.exit_code
    except Exception as error:  # a bug of ours or of a library: still one line, and the way to see more
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        _show(error, f"Quantizing {args.source} failed ({reason}); --verbose shows where.", args.verbose)
        return 1
    for text in report.warnings:
        print(f"warning: {text}", file=sys.stderr)
    if not args.quiet:
        print(summary(report))
    return 0


def summary(report: QuantizeReport) -> str:
    """What a run did, for people: layers, sizes, time, and the command that serves the result."""
    from vllm_ext.quantize.resources import human

    before, after = report.linear_bf16_bytes, report.linear_packed_bytes
    kept = ", ".join(report.excluded_layers[:4]) + (", ..." if len(report.excluded_layers) > 4 else "")
    lines = [
        f"{report.architecture}: {report.quantized_layers} linear layers quantized to MXFP4 "
        f"({human(before)} in bf16 -> {human(after)}, {after / before:.2f})",
        f"kept in bf16: {report.bf16_parameters / 1e6:.1f} million parameters"
        + (f"; linear layers among them: {kept}" if kept else ""),
        f"size: source {human(report.source_bytes)}, in bf16 {human(report.bf16_bytes)} -> "
        f"{human(report.output_bytes)} on disk",
        f"time: {report.seconds:.0f} s",
        f"serve it: vllm serve {shlex.quote(str(report.output))}",
    ]
    return "\n".join(lines)


def _show(error: Exception, message: str, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
