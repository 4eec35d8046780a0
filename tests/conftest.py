# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: a clean environment, and child processes that see only what a test gives them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("VLLM_", "XDG_CACHE_HOME", "CXX")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the developer's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith(OURS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a command in a child process, in an empty folder; ``env`` is added to the clean environment."""

    def run_child(
        *command: str, env: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**os.environ, **(env or {})},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run_child


@pytest.fixture
def python(run: Run) -> Run:
    """Run Python source in a fresh interpreter of this environment."""

    def run_source(source: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
        return run(sys.executable, "-c", source, **kwargs)

    return run_source
