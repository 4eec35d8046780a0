# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama and what the real command makes of it. These tests run in the environment that has amd-quark."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.tools import make_tiny_models
from vllm_ext.cli import quantize as command

Quantize = Callable[..., int]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Elsewhere they are skipped, visibly."""
    if find_spec("quark") is None:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="amd-quark has an environment of its own; see make test"))


def run_command(*arguments: str | Path) -> int:
    """`vllm-ext quantize ARGUMENTS` in this process; the exit code."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["quantize", *map(str, arguments)])
    return int(parsed.func(parsed))


@pytest.fixture(scope="session")
def quantize() -> Quantize:
    return run_command


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source folder: two layers, hidden 64, an output layer of its own."""
    path = tmp_path_factory.mktemp("source") / "llama"
    make_tiny_models.llama(path, hidden=64, heads=4, kv_heads=2, intermediate=96, tie=False)
    # What transformers 5 refuses to write and amd-quark would change.
    (path / "generation_config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2, "top_p": 0.9}')
    (path / "LICENSE").write_text("a licence")
    return path


@pytest.fixture(scope="session")
def quantized(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the command makes of it."""
    out = tmp_path_factory.mktemp("output") / "llama-mxfp4"
    assert run_command(llama, out, "--quiet") == 0
    return out
