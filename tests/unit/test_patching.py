# SPDX-License-Identifier: Apache-2.0
"""A patch is applied under all the names of a function or under none."""

from __future__ import annotations

import sys
import types

import pytest

from vllm_ext.patching import Patch, PatchError


def original():
    return "original"


@pytest.fixture
def modules(monkeypatch):
    """A package of three modules: one defines a function, one imported it by name, one has another of that name."""
    made = []
    for name in ("patched.home", "patched.user", "patched.other", "stranger"):
        module = types.ModuleType(name)
        module.work = original if name != "patched.other" else (lambda: "other")
        monkeypatch.setitem(sys.modules, name, module)
        made.append(module)
    return made


def patch(target="patched.home:work"):
    return Patch(
        id="test.work",
        target=target,
        make=lambda old: lambda: old() + " wrapped",
        reason="test",
        remove_when="never",
    )


def test_applied_under_every_name_of_the_package_and_reverted(modules):
    wrap = patch()
    wrap.apply()
    wrap.apply()
    assert [module.work() for module in modules] == ["original wrapped", "original wrapped", "other", "original"]
    wrap.revert()
    assert [module.work() for module in modules] == ["original", "original", "other", "original"]
    assert not wrap.applied


@pytest.mark.parametrize(
    "target, message",
    [
        ("patched.home:gone", "patched.home:gone is not there"),
        ("patched.home:Gone.work", "patched.home:Gone.work is not there"),
        ("not_a_module:work", "not_a_module cannot be imported"),
    ],
)
def test_nothing_is_applied_when_the_target_is_missing(modules, target, message):
    wrap = patch(target)
    with pytest.raises(PatchError, match=message):
        wrap.apply()
    assert modules[0].work is original and not wrap.applied


def test_everything_is_put_back_when_one_place_does_not_keep_the_replacement(modules, monkeypatch):
    class Stubborn(types.ModuleType):
        def __setattr__(self, name, value):
            pass

    stubborn = Stubborn("patched.stubborn")
    stubborn.__dict__["work"] = original
    monkeypatch.setitem(sys.modules, "patched.stubborn", stubborn)
    wrap = patch()
    with pytest.raises(PatchError, match="patched.stubborn did not keep"):
        wrap.apply()
    assert modules[0].work is original and modules[1].work is original and not wrap.applied


def test_a_method_is_replaced_in_its_class(modules):
    class Worker:
        def work(self):
            return "original"

    modules[0].Worker = Worker
    wrap = Patch(
        id="test.method",
        target="patched.home:Worker.work",
        make=lambda old: lambda self: old(self) + " wrapped",
        reason="test",
        remove_when="never",
    )
    wrap.apply()
    assert Worker().work() == "original wrapped"
    wrap.revert()
    assert Worker().work() == "original"
