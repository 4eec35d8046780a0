# SPDX-License-Identifier: Apache-2.0
"""The list of declarations: complete, and the source of its page."""

from __future__ import annotations

import ast
import subprocess
import sys

from tests.conftest import ROOT
from vllm_ext import seams


def test_the_page_is_generated():
    assert (ROOT / "docs" / "patches.md").read_text() == seams.markdown(), "run: make docs"


def test_nothing_declared_is_missing_from_the_list():
    """Every call of Seam or Patch in the package, found in its source, has its id in the list."""
    found = set()
    for file in (ROOT / "vllm_ext").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Seam", "Patch"):
                found |= {ast.literal_eval(word.value) for word in node.keywords if word.arg == "id"}
    assert found == {seam.id for seam in seams.ALL}


def test_ids_are_unique_and_the_list_imports_no_vllm():
    ids = [seam.id for seam in seams.ALL]
    assert len(ids) == len(set(ids))
    source = "import sys, vllm_ext.seams; print([name for name in sys.modules if name.split('.')[0] == 'vllm'])"
    assert subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout == "[]\n"
