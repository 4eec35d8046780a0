# SPDX-License-Identifier: Apache-2.0
"""Every declaration of vllm_ext.seams against the source of every vLLM release since the lowest supported one."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable

import pytest

from tests.drift.checks import applies, difference, outlived
from tests.drift.conftest import SEEN
from tests.drift.releases import CHECKED, Index, Release
from tests.drift.static import Tree, Unreadable
from vllm_ext.patching import Patch
from vllm_ext.platforms.zen_linear import DISPATCH
from vllm_ext.seams import ALL

CASES = [(release, seam) for release in CHECKED for seam in ALL if applies(seam, release)]


@pytest.mark.parametrize(("release", "seam"), CASES, ids=[f"{release}-{seam.id}" for release, seam in CASES])
def test_the_release_is_as_declared(release, seam, tree_of, record_property):
    record_property(SEEN, (release, seam.id))
    different = difference(seam, release, tree_of(release))
    if different:
        pytest.fail(different, pytrace=False)


@pytest.mark.parametrize("seam", ALL, ids=lambda seam: seam.id)
def test_every_declaration_is_still_needed(seam, tree_of):
    assert outlived(seam, CHECKED, tree_of) == []


def test_every_declaration_has_a_name_of_its_own():
    ids = [seam.id for seam in ALL]
    assert len(set(ids)) == len(ids)


# What the rules find when a release does drift: a copy of a real one, changed.
BROKEN = "0.17.1"
UTILS = "vllm/model_executor/layers/utils.py"


@pytest.fixture
def change(releases, tmp_path) -> Callable[[str, str], Tree]:
    """Return the source of release BROKEN after one replacement in the file UTILS."""

    def changed(old: str, new: str) -> Tree:
        assert releases[BROKEN].read(UTILS) is not None  # it is in the cache now
        shutil.copytree(releases[BROKEN].folder, tmp_path / BROKEN)
        copy = tmp_path / BROKEN / UTILS
        text = copy.read_text()
        assert text.count(old) == 1
        copy.write_text(text.replace(old, new))
        return Tree(Release(BROKEN, Index(), cache=tmp_path).read)

    return changed


def test_a_renamed_parameter_is_found(change):
    tree = change("def dispatch_cpu_unquantized_gemm(\n    layer:", "def dispatch_cpu_unquantized_gemm(\n    module:")
    assert difference(DISPATCH, BROKEN, tree) == (
        "zen_cpu.linear_dispatch: in vLLM 0.17.1, vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm "
        "has the parameters (module, remove_weight), not (layer, remove_weight)"
    )


def test_a_removed_function_is_found(change):
    tree = change("def dispatch_cpu_unquantized_gemm(", "def another_name(")
    assert difference(DISPATCH, BROKEN, tree) == (
        "zen_cpu.linear_dispatch: vLLM 0.17.1 has none of its targets "
        "(vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm: "
        "the module vllm.model_executor.layers.utils has no dispatch_cpu_unquantized_gemm)"
    )


# The rules that say when a patch must go, on three releases of one made-up module: "old" is in all, "new" in the last.
MADE_UP = {"1.0": "def old(): ...", "1.1": "def old(): ...", "2.0": "def old(): ...\ndef new(): ..."}


def made_up(release: str) -> Tree:
    return Tree({"host.py": MADE_UP[release]}.get)


needless = functools.partial(outlived, releases=tuple(MADE_UP), tree_of=made_up)
PATCH = Patch(
    id="made.up",
    targets=("host:old",),
    make=lambda original: original,
    reason="test",
    upstream="none",
    remove_when="never",
    releases="<2",
    native="host:new",
)


def test_a_patch_that_is_needed_stays():
    assert needless(PATCH) == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"native": "host:old"}, "1.0, the lowest supported vLLM, has host:old, so it can be deleted"),
        ({"releases": ""}, "vLLM 2.0 has host:new, but 'releases' (all) covers it"),
        ({"releases": ">=1.1"}, "vLLM 2.0 has host:new, but 'releases' (>=1.1) covers it"),
        ({"releases": "<1.0"}, "no supported vLLM release is <1.0, so it can be deleted"),
    ],
)
def test_a_patch_that_is_not_needed_is_named(fields, reason):
    assert needless(dataclasses.replace(PATCH, **fields)) == [f"made.up: {reason}"]


def test_a_native_name_that_cannot_be_read_is_no_answer():
    source = "table = {'new': 'elsewhere:new'}\ndef __getattr__(name): ..."
    with pytest.raises(Unreadable, match="host has new only through its __getattr__"):
        outlived(PATCH, ["1.0"], lambda release: Tree({"host.py": source}.get))
