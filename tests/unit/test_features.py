# SPDX-License-Identifier: Apache-2.0
"""States: off by its own name, failed without taking anything down, refused only when strict."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest

from tests.conftest import ROOT
from vllm_ext import features
from vllm_ext.features import Outcome, State

ZEN = features.BY_ID["zen_cpu"]


@pytest.fixture(autouse=True)
def no_outcomes(monkeypatch):
    monkeypatch.setattr(features, "_outcomes", {})


def stand_in(monkeypatch, activate):
    """A catalogue of one feature whose module is *activate*."""
    module = types.ModuleType("stand_in_feature")
    module.activate = activate
    monkeypatch.setitem(sys.modules, "stand_in_feature", module)
    monkeypatch.setattr(features, "CATALOGUE", (dataclasses.replace(ZEN, module="stand_in_feature"),))


def broken(mode):
    raise OSError("undefined symbol")


def test_off_names_the_switch(monkeypatch):
    stand_in(monkeypatch, broken)
    monkeypatch.setenv("VLLM_EXT_ZEN_CPU", "0")
    assert features.activate_all() == {"zen_cpu": Outcome(State.OFF, "by VLLM_EXT_ZEN_CPU=0")}


def test_a_raising_capability_is_failed_and_stock_serves(monkeypatch):
    stand_in(monkeypatch, broken)
    assert features.activate_all() == {"zen_cpu": Outcome(State.FAILED, "OSError: undefined symbol")}
    features.report("1.0")


def test_strict_refuses_a_failed_capability(monkeypatch):
    stand_in(monkeypatch, broken)
    monkeypatch.setenv("VLLM_EXT_STRICT", "1")
    features.activate_all()
    with pytest.raises(features.VllmExtError, match="zen_cpu is failed .* undefined symbol"):
        features.report("1.0")


def test_strict_refuses_a_wish_that_is_not_met_but_not_a_host_that_does_not_apply(monkeypatch):
    stand_in(monkeypatch, lambda mode: Outcome(State.NOT_APPLICABLE, "not an AMD CPU"))
    monkeypatch.setenv("VLLM_EXT_STRICT", "1")
    features.activate_all()
    features.report("1.0")
    monkeypatch.setenv("VLLM_EXT_ZEN_CPU", "1")
    with pytest.raises(features.VllmExtError, match="VLLM_EXT_ZEN_CPU=1 asks for it: not an AMD CPU"):
        features.report("1.0")


def test_strict_refuses_an_unknown_variable(monkeypatch):
    stand_in(monkeypatch, lambda mode: Outcome(State.ACTIVE, "fine"))
    monkeypatch.setenv("VLLM_EXT_STRICT", "1")
    monkeypatch.setenv("VLLM_EXT_ZEN", "1")
    features.activate_all()
    with pytest.raises(features.VllmExtError, match="did you mean VLLM_EXT_ZEN_CPU"):
        features.report("1.0")


def test_the_status_line_names_every_state_and_its_reason(caplog, monkeypatch):
    stand_in(monkeypatch, lambda mode: Outcome(State.ACTIVE, f"mode {mode}"))
    features.activate_all()
    with caplog.at_level("INFO", logger="vllm.vllm_ext"):
        features.report("1.0")
    assert [record.message for record in caplog.records] == [
        "vllm_ext 1.0: zen_cpu=active (mode auto). Details: vllm-ext doctor"
    ]


@pytest.mark.parametrize("feature", features.CATALOGUE, ids=lambda feature: feature.id)
def test_every_capability_has_its_page(feature):
    assert (ROOT / feature.page).is_file()
