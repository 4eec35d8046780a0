# SPDX-License-Identifier: Apache-2.0
"""Finds names and parameters in Python source without running it: those that import and inspect.signature would give.

What it cannot know: a decorator that changes the parameters, names that are made while running, and classes outside
the tree.
"""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.drift.scopes import (
    Bound,
    Imported,
    Outside,
    argument_names,
    bindings,
    constants,
    parse,
    star_imports,
    strings,
    text_of,
)

Read: TypeAlias = Callable[[str], str | None]  # path of a file ("vllm/envs.py") -> its text, or None: there is no such

NO_MEMBERS = {"object", "abc.ABC", "typing.Generic"}
PROPERTIES = {"property", "cached_property", "setter", "getter", "deleter"}


class Missing(LookupError):
    """The name is not there."""


class Unreadable(Missing):
    """The source alone does not tell."""


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, eq=False)
class Module:
    """A module's name, and the package its relative imports start from."""

    name: str
    package: str
    node: ast.Module


@dataclass(frozen=True)
class Found:
    """What a name is bound to, the module it stands in, and the class, if any."""

    node: ast.AST | Outside
    module: Module
    owner: ast.ClassDef | None = None


class Tree:
    """The source of a release."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._modules: dict[str, Module | None] = {}
        self._classes: dict[ast.AST | Outside, type] = {}

    def find(self, target: str) -> Found:
        """Return what *target* ("module:function", "module:Class.method" …) is. Raises Missing."""
        module_name, path = target.split(":")
        module = self._module(module_name)
        if module is None:
            raise Missing(f"there is no module {module_name}")
        found = Found(module.node, module)
        for name in path.split("."):
            found = self._attribute(found, name)
        return found

    def parameters(self, found: Found) -> list[str]:
        """Return the names inspect.signature would give. Raises Unreadable."""
        found = self._value(found)
        node = found.node
        if isinstance(node, ast.ClassDef):
            return self._class_parameters(found)
        if isinstance(node, ast.Lambda):
            return argument_names(node.args)
        if not isinstance(node, Function):
            raise Unreadable(f"its parameters cannot be read from {_short(node)}")
        decorators = {text_of(decorator).split(".")[-1] for decorator in node.decorator_list}
        if decorators & PROPERTIES:
            raise Unreadable("it is a property, which has no parameters")
        bound = found.owner is not None and "classmethod" in decorators
        return argument_names(node.args)[1 if bound else 0 :]

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = None
            base = name.replace(".", "/")
            for path, package in ((f"{base}/__init__.py", name), (f"{base}.py", name.rpartition(".")[0])):
                text = self._read(path)
                if text is not None:
                    self._modules[name] = Module(name, package, parse(text))
                    break
        return self._modules[name]

    def _attribute(self, owner: Found, name: str) -> Found:
        owner = self._value(owner)
        match owner.node:
            case ast.Module():
                return self._in_module(owner.module, name)
            case ast.ClassDef() as node:
                line = self._line(owner)
                for base in line:
                    if isinstance(base.node, ast.ClassDef) and name in bindings(base.node):
                        return self._follow(bindings(base.node)[name], base.module, base.node)
                outside = [base.node.name for base in line if isinstance(base.node, Outside)]
                unread = f" (its base {', '.join(outside)} is outside the source)" if outside else ""
                raise Missing(f"the class {node.name} has no {name}{unread}")
        raise Unreadable(f"{name} cannot be looked up in {_short(owner.node)}")

    def _in_module(self, module: Module, name: str) -> Found:
        bound = bindings(module.node)
        if name in bound:
            return self._follow(bound[name], module)
        for star in star_imports(module.node):
            source = self._module(_absolute(star, module))
            if source is not None and not name.startswith("_"):
                try:
                    return self._in_module(source, name)
                except Missing:
                    continue
        return self._submodule(module, name)

    def _submodule(self, package: Module, name: str) -> Found:
        module = self._module(f"{package.name}.{name}")
        if module is not None:
            return Found(module.node, module)
        if "__getattr__" in bindings(package.node) and name in strings(package.node):
            raise Unreadable(f"{package.name} has {name} only through its __getattr__, which cannot be followed")
        raise Missing(f"the module {package.name} has no {name}")

    def _follow(self, bound: Bound, where: Module, owner: ast.ClassDef | None = None) -> Found:
        """Return what an import in *where* brings, and anything else as it is."""
        if not isinstance(bound, Imported):
            return Found(bound, where, owner)
        name = _absolute(bound, where)
        module = self._module(name)
        if bound.name is None:
            return Found(module.node, module) if module else Found(Outside(name), where)
        if module is None:
            return Found(Outside(f"{name}.{bound.name}"), where)
        try:
            return self._submodule(module, bound.name) if module is where else self._in_module(module, bound.name)
        except Unreadable:  # the import binds the name all the same
            return Found(Outside(f"{name}.{bound.name}"), where)

    def _value(self, found: Found) -> Found:
        """Follow plain names and attributes: of ``new = old`` or ``new = module.old`` return *old*."""
        match found.node:
            case ast.Name(id=name):
                own = bindings(found.owner).get(name) if found.owner is not None else None
                if own is not None and own is not found.node:  # ``name = name`` in a class takes the module's
                    return self._value(self._follow(own, found.module, found.owner))
                if name not in bindings(found.module.node) and hasattr(builtins, name):
                    return Found(Outside(name), found.module)
                return self._value(self._in_module(found.module, name))
            case ast.Attribute(value=value, attr=name):
                holder = self._value(Found(value, found.module, found.owner))
                if isinstance(holder.node, Outside):
                    return Found(Outside(f"{holder.node.name}.{name}"), found.module)
                return self._value(self._attribute(holder, name))
        return found

    def _line(self, found: Found) -> list[Found]:
        """Return the class and its bases in the order of attribute lookup: Python's own, of classes made alike."""
        return [cls.__dict__["found"] for cls in self._alike(found).__mro__[:-1]]

    def _alike(self, found: Found) -> type:
        if found.node not in self._classes:
            bases = []
            for base in found.node.bases if isinstance(found.node, ast.ClassDef) else ():
                base = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
                try:
                    value = self._value(Found(base, found.module))
                except Missing:
                    value = Found(Outside(text_of(base)), found.module)
                if not isinstance(value.node, ast.ClassDef | Outside):
                    value = Found(Outside(text_of(base)), found.module)
                if not (isinstance(value.node, Outside) and value.node.name in NO_MEMBERS):
                    bases.append(self._alike(value))
            self._classes[found.node] = type("Alike", tuple(bases), {"found": found})
        return self._classes[found.node]

    def _class_parameters(self, found: Found) -> list[str]:
        line = self._line(found)
        for position, cls in enumerate(line):
            if not isinstance(cls.node, ast.ClassDef):
                raise Unreadable(f"its __init__ may come from {text_of(cls.node)}, which is outside the source")
            for name in ("__new__", "__init__"):
                maker = bindings(cls.node).get(name)
                if isinstance(maker, Function):
                    return argument_names(maker.args)[1:]
            options = self._dataclass(cls)
            if options is not None and options.get("init", True):
                return self._fields(line[position:])
        return []

    def _dataclass(self, found: Found) -> dict[str, object] | None:
        """Return the arguments of the decorator that makes the class a dataclass, or None: it is not one."""
        for decorator in found.node.decorator_list if isinstance(found.node, ast.ClassDef) else ():
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            try:
                node = self._value(Found(called, found.module)).node
            except Missing:
                continue
            makers = [node.name] if isinstance(node, Outside) else []
            if isinstance(node, Function):  # one that marks itself as a kind of dataclass
                makers = [text_of(of).partition("(")[0] for of in node.decorator_list]
            if any(maker.split(".")[-1] in ("dataclass", "dataclass_transform") for maker in makers):
                return constants(decorator)
        return None

    def _fields(self, line: list[Found]) -> list[str]:
        fields: dict[str, tuple[bool, bool]] = {}  # name -> (is a parameter, by keyword only)
        for cls in reversed(line):
            options = self._dataclass(cls)
            if options is None or not isinstance(cls.node, ast.ClassDef):
                continue
            by_keyword = bool(options.get("kw_only", False))
            for statement in cls.node.body:
                match statement:
                    case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                        kind = text_of(annotation).strip("'\"").partition("[")[0].split(".")[-1]
                        if kind == "KW_ONLY":
                            by_keyword = True
                        elif kind != "ClassVar":
                            own = constants(value)
                            fields[name] = (bool(own.get("init", True)), bool(own.get("kw_only", by_keyword)))
        wanted = [(name, by_keyword) for name, (parameter, by_keyword) in fields.items() if parameter]
        return [name for last in (False, True) for name, by_keyword in wanted if by_keyword is last]


def _absolute(imported: Imported, module: Module) -> str:
    if not imported.level:
        return imported.module
    package = module.package.split(".")[: -(imported.level - 1) or None]
    return ".".join([*package, *filter(None, [imported.module])])


def _short(node: ast.AST | Outside) -> str:
    return textwrap.shorten(text_of(node), 80, placeholder=" …")
