# SPDX-License-Identifier: Apache-2.0
"""The table of environment variables is the only place where they are defined, read and documented."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vllm_ext import envs


@pytest.mark.parametrize("raw", ["1", "true", "YES", " on "])
def test_words_for_on(monkeypatch, raw):
    monkeypatch.setenv("VLLM_EXT_STRICT", raw)
    assert envs.setting("VLLM_EXT_STRICT") == envs.Setting("VLLM_EXT_STRICT", True, "environment")


@pytest.mark.parametrize("raw, value", [("AUTO", "auto"), ("1", "1"), ("off", "0")])
def test_modes(monkeypatch, raw, value):
    monkeypatch.setenv("VLLM_EXT_ZEN_CPU", raw)
    assert envs.get("VLLM_EXT_ZEN_CPU") == value


def test_unset_is_the_default_and_says_so():
    assert envs.setting("VLLM_EXT") == envs.Setting("VLLM_EXT", True, "default")
    assert envs.problems() == []


def test_a_bad_value_leaves_the_default_in_force_and_is_named_with_the_nearest(monkeypatch):
    monkeypatch.setenv("VLLM_EXT_ZEN_CPU", "atuo")
    assert envs.get("VLLM_EXT_ZEN_CPU") == "auto"
    assert "not valid" in envs.setting("VLLM_EXT_ZEN_CPU").source
    (sentence,) = envs.problems()
    assert "VLLM_EXT_ZEN_CPU='atuo'" in sentence and "did you mean auto?" in sentence


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("VLLM_EXT_ZENCPU", "VLLM_EXT_ZEN_CPU"),
        ("VLLM_EXT_QUARK", "VLLM_EXT_QUARK_MXFP4"),
        ("VLLM_EXT_STRIKT", "VLLM_EXT_STRICT"),
    ],
)
def test_an_unknown_name_is_named_with_the_nearest(monkeypatch, name, nearest):
    monkeypatch.setenv(name, "1")
    (sentence,) = envs.problems()
    assert sentence.startswith(name) and f"did you mean {nearest}?" in sentence


def test_a_foreign_name_is_not_ours(monkeypatch):
    monkeypatch.setenv("VLLM_EXTRA_THING", "1")
    assert envs.problems() == []


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert envs.get("VLLM_EXT_CACHE_DIR") == tmp_path / "vllm_ext"


def test_publish_adds_getters_that_never_raise_and_keeps_upstreams_own(monkeypatch):
    upstream = lambda: "upstream's"  # noqa: E731
    host = types.ModuleType("vllm.envs")
    host.environment_variables = {"VLLM_ZENTORCH_WEIGHT_PREPACK": upstream}
    monkeypatch.setitem(sys.modules, "vllm.envs", host)
    monkeypatch.setenv("VLLM_EXT_STRICT", "nonsense")
    envs.publish()
    assert set(host.environment_variables) == set(envs.BY_NAME)
    assert host.environment_variables["VLLM_ZENTORCH_WEIGHT_PREPACK"] is upstream
    assert [host.environment_variables[var.name]() is not None for var in envs.TABLE]


def test_the_page_is_generated_from_the_table():
    assert (ROOT / "docs" / "toggles.md").read_text() == envs.markdown(), "run: make docs"


def test_no_other_module_reads_our_variables():
    """Every VLLM_EXT* name in the package's source is one of the table's."""
    for file in (ROOT / "vllm_ext").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if node.value.startswith("VLLM_EXT") and node.value.replace("_", "").isalpha() and node.value.isupper():
                assert node.value in envs.BY_NAME or node.value == envs.PREFIX, f"{file}: {node.value}"


def test_the_entry_points_import_the_standard_library_only(python):
    source = (
        "import sys; before = set(sys.modules); import vllm_ext.entrypoints; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before}; "
        "print(sorted(new - set(sys.stdlib_module_names) - {'vllm_ext'}))"
    )
    done = python(source)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_readme_names_no_variable_that_does_not_exist():
    words = {word.strip("`=01.,:;()") for word in (ROOT / "README.md").read_text().split()}
    ours = {word.split("=")[0] for word in words if word.startswith("VLLM_EXT")}
    assert ours <= set(envs.BY_NAME), ours - set(envs.BY_NAME)
    assert ours, "the README says how to switch things off"


def test_path_kind_refuses_an_empty_value(monkeypatch):
    monkeypatch.setenv("VLLM_EXT_CACHE_DIR", "")
    assert envs.get("VLLM_EXT_CACHE_DIR") == Path("~/.cache/vllm_ext").expanduser()
    assert "VLLM_EXT_CACHE_DIR is empty" in envs.problems()[0]
