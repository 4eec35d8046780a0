# SPDX-License-Identifier: Apache-2.0
"""A patch is applied under all the names of a function or under none."""

from __future__ import annotations

import importlib
import itertools
import sys
import types

import pytest

from tests.conftest import ROOT
from vllm_ext.patching import MORE, Group, Patch, PatchError, misfit


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


def patch(*targets, **fields):
    return Patch(
        id="test.work",
        targets=targets or ("patched.home:work",),
        make=lambda old: lambda: old() + " wrapped",
        reason="test",
        upstream="none",
        remove_when="never",
        **fields,
    )


def test_applied_under_every_name_of_the_package_and_reverted(modules):
    wrap = patch()
    wrap.apply()
    wrap.apply()
    assert [module.work() for module in modules] == ["original wrapped", "original wrapped", "other", "original"]
    assert "stranger" in wrap.stale and "patched.user" not in wrap.stale
    assert wrap.revert() == []
    assert [module.work() for module in modules] == ["original", "original", "other", "original"]
    assert not wrap.applied


@pytest.mark.parametrize("path", ["gone", "Gone.work"])
def test_nothing_is_applied_when_the_target_is_missing(modules, path):
    wrap = patch(f"patched.home:{path}")
    with pytest.raises(PatchError, match=f"test.work: none of patched.home:{path} is there"):
        wrap.apply()
    assert modules[0].work is original and wrap.state == "off"


def test_nothing_is_applied_when_the_parameters_differ(modules):
    wrap = patch(parameters=("self", "x"))
    with pytest.raises(PatchError, match=r"patched.home:work has the parameters \(\), not \(self, x\)"):
        wrap.apply()
    assert modules[0].work is original and wrap.state == "off"


@pytest.mark.parametrize(
    "declared, actual, fits",
    [
        (None, ["x"], True),
        (("x",), ["x"], True),
        (("x",), ["x", "y"], False),
        (("x", MORE), ["x", "y"], True),
        (("x", MORE), ["y", "x"], False),
        ((MORE,), [], True),
        ((), ["x"], False),
    ],
)
def test_parameters_fit_by_name_and_order(declared, actual, fits):
    assert (misfit(declared, actual) is None) == fits


def test_everything_is_put_back_when_one_place_does_not_keep_the_replacement(modules, monkeypatch):
    class Stubborn(types.ModuleType):
        def __setattr__(self, name, value):
            pass

    stubborn = Stubborn("patched.stubborn")
    stubborn.__dict__["work"] = original
    monkeypatch.setitem(sys.modules, "patched.stubborn", stubborn)
    wrap = patch()
    with pytest.raises(PatchError, match="patched.stubborn.work did not keep"):
        wrap.apply()
    assert modules[0].work is original and modules[1].work is original and not wrap.applied


def test_a_method_is_replaced_in_its_class(modules):
    class Worker:
        def work(self):
            return "original"

    modules[0].Worker = Worker
    wrap = Patch(
        id="test.method",
        targets=("patched.home:Worker.work",),
        make=lambda old: lambda self: old(self) + " wrapped",
        reason="test",
        upstream="none",
        remove_when="never",
    )
    wrap.apply()
    assert Worker().work() == "original wrapped"
    wrap.revert()
    assert Worker().work() == "original"


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_method_keeps_its_kind(modules, kind):
    class Worker:
        work = kind(lambda *args: f"original {len(args)}")

    modules[0].Worker = Worker
    wrap = patch("patched.home:Worker.work")
    wrap.make = lambda old: lambda *args: old(*args) + " wrapped"
    before = Worker.__dict__["work"]
    wrap.apply()
    assert Worker.work() == Worker().work() == f"original {int(kind is classmethod)} wrapped"
    wrap.revert()
    assert Worker.__dict__["work"] is before


def test_an_inherited_method_is_replaced_in_the_named_class_only(modules):
    class Base:
        def work(self):
            return "original"

    class Worker(Base):
        pass

    modules[0].Worker = Worker
    wrap = patch("patched.home:Worker.work")
    wrap.make = lambda old: lambda self: old(self) + " wrapped"
    wrap.apply()
    assert (Worker().work(), Base().work()) == ("original wrapped", "original")
    wrap.revert()
    assert "work" not in vars(Worker)


def test_the_first_candidate_that_exists_is_taken(modules):
    wrap = patch("patched.home:gone", "patched.user:work")
    wrap.apply()
    assert modules[1].work() == "original wrapped"
    wrap.revert()


def test_revert_leaves_what_another_package_put_there_and_names_it(modules):
    wrap = patch()
    wrap.apply()
    modules[0].work = theirs = lambda: "theirs"
    assert wrap.revert() == ["patched.home.work"]
    assert modules[0].work is theirs and modules[1].work is original


def test_a_group_is_in_force_whole_or_not_at_all(modules):
    first, second = patch(), patch("patched.other:gone")
    group = Group("test", (first, second))
    with pytest.raises(PatchError, match="patched.other:gone"):
        group.apply()
    assert modules[0].work is original and (first.state, second.state) == ("off", "off")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write modules of a package `late` that is not imported yet; gone from sys.modules afterwards."""

    def write(**sources):
        folder = tmp_path / "late"
        folder.mkdir(exist_ok=True)
        for name, source in {"__init__": "", **sources}.items():
            (folder / f"{name}.py").write_text(source)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "late"]:
        del sys.modules[name]


WORK = "def work():\n    return 'original'\n"


def late():
    return importlib.import_module("late.home").work()


def test_a_patch_waits_for_the_import_and_outlives_a_failed_one_and_a_reload(package):
    package(home="raise ImportError('half-way')")
    wrap = patch("late.home:work")
    wrap.apply()
    assert wrap.state == "pending"
    with pytest.raises(ImportError, match="half-way"):
        importlib.import_module("late.home")
    assert wrap.state == "pending"
    package(home=WORK)
    assert late() == "original wrapped" and wrap.state == "applied"
    home = importlib.reload(sys.modules["late.home"])
    assert home.work() == "original wrapped"
    del sys.modules["late.home"]
    assert late() == "original wrapped"
    assert type(home.__spec__.loader).__module__ != "vllm_ext.post_import"
    assert wrap.revert() == [] and late() == "original"


def test_revert_before_the_import_leaves_nothing_behind(package):
    package(home=WORK)
    wrap = patch("late.home:work")
    wrap.apply()
    wrap.revert()
    assert late() == "original" and wrap.state == "off"
    assert not [finder for finder in sys.meta_path if type(finder).__module__ == "vllm_ext.post_import"]


def test_a_late_failure_does_not_stop_the_import_and_is_told(package):
    package(home=WORK, other="def gone_by_now(): ...")
    told = []
    first, second = patch("late.home:work"), patch("late.other:work")
    Group("test", (first, second)).apply(told.append)
    assert late() == "original wrapped"
    importlib.import_module("late.other")
    assert told == ["test.work: none of late.other:work is there"]
    assert late() == "original" and (first.state, second.state) == ("off", "off")


# Every order of these events, in a fresh process, and in children of it by fork and by spawn. The target is imported by
# itself or through a `from` import; the last line printed is what a caller of either name gets.
ORDERS = """
import itertools, multiprocessing, sys
sys.path[:0] = [{folder!r}, {root!r}]
from vllm_ext.patching import Patch

WRAP = Patch(id="order", targets=("late.home:work",), reason="", upstream="", remove_when="",
             make=lambda old: lambda: old() + " wrapped")
EVENTS = {{
    "package": lambda: __import__("late"),
    "target": lambda: __import__("late.home"),
    "user": lambda: __import__("late.user"),
    "register": WRAP.apply,
    "revert": WRAP.revert,
}}

def answers(order):
    for event in order:
        EVENTS[event]()
    import late.home, late.user
    return late.home.work(), late.user.call()

def run(order, results):
    try:
        results.put((order, answers(order)))
    except Exception as error:
        results.put((order, repr(error)))

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    results = context.Queue()
    for orders in {orders!r}:
        child = context.Process(target=run, args=(orders, results))
        child.start()
        order, got = results.get()
        child.join()
        registered = "register" in order and order.index("register") > order.index("revert")
        want = "original wrapped" if registered else "original"
        assert got == (want, want), (order, got)
    print("orders", len({orders!r}))
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_order_of_import_register_and_revert(package, run, tmp_path, method):
    package(home=WORK, user="from late.home import work\ndef call():\n    return work()\n")
    events = ("package", "target", "user", "register", "revert")
    orders = list(itertools.permutations(events))
    if method == "spawn":  # a fresh interpreter for each: the orders that differ in what is imported when
        orders = [order for order in orders if order.index("package") == 0]
    script = tmp_path / "orders.py"
    script.write_text(ORDERS.format(folder=str(tmp_path), root=str(ROOT), method=method, orders=orders))
    done = run(sys.executable, str(script))
    assert f"orders {len(orders)}" in done.stdout, done.stdout + done.stderr


def test_a_patch_of_the_parent_holds_in_a_forked_child(package, run, tmp_path):
    package(home=WORK, user="from late.home import work\ndef call():\n    return work()\n")
    script = tmp_path / "forked.py"
    script.write_text(
        ORDERS.format(folder=str(tmp_path), root=str(ROOT), method="fork", orders=[])
        + "    WRAP.apply()\n    child = context.Process(target=run, args=((), results))\n    child.start()\n"
        "    print(results.get())\n"
    )
    done = run(sys.executable, str(script))
    assert "('original wrapped', 'original wrapped')" in done.stdout, done.stdout + done.stderr
