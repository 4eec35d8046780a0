# SPDX-License-Identifier: Apache-2.0
"""The resolver says what import and inspect.signature say: both read the same small packages."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap

import pytest

from tests.drift.checks import difference
from tests.drift.static import Missing, Tree, Unreadable
from vllm_ext.patching import MORE, Seam

PACKAGE = {
    "__init__.py": """
        from typing import TYPE_CHECKING
        from . import things
        from .functions import plain as renamed
        from .functions import *
        from .deep.inner import climbs
        import pack.functions as functions_module
        if TYPE_CHECKING:
            from .functions import only_for_checkers
    """,
    "functions.py": """
        import functools
        from contextlib import contextmanager, suppress
        from typing import overload

        unset: int
        VARIABLE: dict = {}
        FIRST, (SECOND, *OTHERS) = 1, (2, 3)
        def plain(a, b=1): ...
        async def waits(a, /, b, *args, c, d=1, **kwargs): ...
        @overload
        def many(a: int): ...
        @overload
        def many(a: str): ...
        def many(a, again=None): ...
        @functools.lru_cache
        def cached(a): ...
        @contextmanager
        def managed(a): yield
        alias = plain
        short = lambda x, y: x
        def _private(a): ...
        if functools:
            def branch(a): ...
        else:
            def branch(b): ...
        try:
            def tried(a): ...
        except ImportError:
            tried = None
        try:
            from nowhere import attempted
        except ImportError:
            def attempted(a, b): ...
        with suppress(ImportError):
            def in_with(a): ...
        for _ in (1,):
            def in_for(a): ...
        class Only:
            pass
    """,
    "deep/__init__.py": "from ..functions import plain",
    "deep/inner.py": """
        from ..things import Base
        from . import plain
        def climbs(up): ...
        class Far(Base):
            def own(self, far): ...
    """,
    "things.py": """
        import collections
        import enum
        from abc import ABC
        from dataclasses import KW_ONLY, dataclass, field, InitVar
        from typing import ClassVar, Generic, TypeVar

        from .functions import plain
        from . import functions

        T = TypeVar("T")
        class Base(ABC, Generic[T]):
            def __init__(self, base, *, option=None): ...
            def method(self, x, y): ...
            @classmethod
            def made(cls, source): ...
            @staticmethod
            def free(x): ...
            @property
            def shown(self): ...
            borrowed = plain
            called = method
            table = {"a": 1}
            noted: int
            plain = plain
            if True:
                def guarded(self, z): ...
            class Nested:
                def leaf(self, n): ...
        class Left(Base[int]):
            def where(self, left): ...
        class Right(Base[int]):
            def where(self, right): ...
            def method(self, right): ...
        class Bottom(Left, Right):
            pass
        class Empty:
            pass
        class Maker:
            def __new__(cls, made): return super().__new__(cls)
        class Made(Maker):
            pass
        @dataclass
        class Record:
            first: int
            shared: "ClassVar[int]" = 0
            second: list = field(default_factory=list)
            hidden: int = field(default=0, init=False)
            once: InitVar[int] = 0
        @dataclass(kw_only=True)
        class Keyword(Record):
            third: int
            first: int = 1
        @dataclass
        class Mixed(Record):
            fourth: int = 4
            _: KW_ONLY
            fifth: int = 5
            sixth: int = field(default=6, kw_only=False)
        @dataclass
        class Explicit(Record):
            last: int = 0
            def __init__(self, chosen): ...
        class Child(Record):
            note: str = ""
        class Dictionary(collections.OrderedDict):
            def set(self, key): ...
        Other = Left
        Dotted = functions.Only
    """,
}

CALLABLE = [
    *("pack:renamed", "pack:plain", "pack:climbs", "pack:waits", "pack:functions_module.plain", "pack:things.Left"),
    *("pack.functions:plain", "pack.functions:waits", "pack.functions:many", "pack.functions:cached"),
    *("pack.functions:managed", "pack.functions:alias", "pack.functions:short", "pack.functions:_private"),
    *("pack.functions:branch", "pack.functions:tried", "pack.functions:in_with", "pack.functions:in_for"),
    *("pack.deep:plain", "pack.deep.inner:plain", "pack.deep.inner:Far", "pack.deep.inner:Far.method"),
    *("pack.things:Base", "pack.things:Base.method", "pack.things:Base.made", "pack.things:Base.free"),
    *("pack.things:Base.borrowed", "pack.things:Base.called", "pack.things:Base.plain", "pack.things:Base.guarded"),
    *("pack.things:Base.Nested.leaf", "pack.things:Left", "pack.things:Left.made", "pack.things:Bottom.where"),
    *("pack.things:Bottom.method", "pack.things:Empty", "pack.things:Maker", "pack.things:Made", "pack.things:Record"),
    *("pack.things:Keyword", "pack.things:Mixed", "pack.things:Explicit", "pack.things:Child", "pack.things:Other"),
    *("pack.things:Dotted", "pack.things:Dictionary.set"),
]
VARIABLES = [
    *("pack.functions:VARIABLE", "pack.functions:FIRST", "pack.functions:SECOND", "pack.functions:OTHERS"),
    *("pack.things:Base.table", "pack.things:Base.shown", "pack.things:ClassVar"),
]
ABSENT = [
    *("pack.gone:plain", "pack:gone", "pack:_private", "pack:only_for_checkers", "pack.functions:unset"),
    *("pack.things:Base.gone", "pack.things:Base.noted", "pack.things:Gone.method", "pack.things:Dictionary.gone"),
]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The package, both importable and as a Tree."""
    for name, text in PACKAGE.items():
        path = tmp_path / "pack" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Tree(lambda path: (tmp_path / path).read_text() if (tmp_path / path).exists() else None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pack"]:
        del sys.modules[name]


def imported(target):
    module, path = target.split(":")
    value = importlib.import_module(module)
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("target", CALLABLE)
def test_parameters_are_those_of_inspect_signature(tree, target):
    assert tree.parameters(tree.find(target)) == list(inspect.signature(imported(target)).parameters)


@pytest.mark.parametrize("target", VARIABLES)
def test_what_is_no_function_is_found_and_has_no_parameters(tree, target):
    imported(target)
    with pytest.raises(Unreadable):
        tree.parameters(tree.find(target))


@pytest.mark.parametrize("target", ABSENT)
def test_what_import_does_not_find_is_missing(tree, target):
    with pytest.raises((ImportError, AttributeError)):
        imported(target)
    with pytest.raises(Missing):
        tree.find(target)


def small(text: str) -> Tree:
    return Tree({"host.py": textwrap.dedent(text)}.get)


def test_a_decorator_that_makes_dataclasses_is_recognised():
    tree = small(
        """
        @dataclass_transform(field_specifiers=(field,))
        def config(cls): ...
        @config
        class Settings:
            size: int = 1
        """
    )
    assert tree.parameters(tree.find("host:Settings")) == ["size"]


def test_a_name_behind_the_modules_getattr_cannot_be_told():
    lazy = small("table = {'later': '.other:later'}\ndef __getattr__(name): ...")
    with pytest.raises(Unreadable, match="host has later only through its __getattr__, which cannot be followed"):
        lazy.find("host:later")
    with pytest.raises(Missing, match="the module host has no never"):
        lazy.find("host:never")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("from torch.nn import Module\nclass work(Module): ...", "its __init__ may come from torch.nn.Module"),
        ("from typing import Protocol\nclass work(Protocol): ...", "its __init__ may come from typing.Protocol"),
        ("work = make()", r"its parameters cannot be read from make\(\)"),
        ("class work(make()): ...", r"its __init__ may come from make\(\)"),
    ],
)
def test_parameters_that_only_running_shows_are_not_guessed(source, reason):
    tree = small(source)
    with pytest.raises(Unreadable, match=reason):
        tree.parameters(tree.find("host:work"))


def seam(*targets, **fields):
    return Seam(id="made.up", targets=targets, reason="test", **fields)


HOST = "VARIABLE = 1\ndef work(a, b): ...\ndef other(a): ..."


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        (seam("host:work"), None),
        (seam("host:VARIABLE"), None),
        (seam("host:work", parameters=("a", "b")), None),
        (seam("host:work", parameters=("a", MORE)), None),
        (seam("gone:work", "host:gone", "host:work", parameters=("a", "b")), None),
        (seam("host:work", parameters=("a",)), "in vLLM 1.0, host:work has the parameters (a, b), not (a)"),
        (  # the first that exists counts, as at run time
            seam("host:work", "host:other", parameters=("a",)),
            "in vLLM 1.0, host:work has the parameters (a, b), not (a)",
        ),
        (
            seam("host:VARIABLE", parameters=("a",)),
            "in vLLM 1.0, host:VARIABLE must have the parameters (a), but its parameters cannot be read from 1",
        ),
        (
            seam("gone:work", "host:gone"),
            "vLLM 1.0 has none of its targets (gone:work: there is no module gone; "
            "host:gone: the module host has no gone)",
        ),
    ],
)
def test_the_sentence_names_declaration_release_target_and_difference(declared, sentence):
    assert difference(declared, "1.0", small(HOST)) == (sentence and f"made.up: {sentence}")
