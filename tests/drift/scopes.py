# SPDX-License-Identifier: Apache-2.0
"""What the statements of a module or a class bind, read from the source.

Of branches (if/else, try/except) that bind the same name, the first counts.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Imported:
    """What an import statement binds: *name* of *module*, or the module itself."""

    module: str
    level: int = 0  # dots before it
    name: str | None = None


@dataclass(frozen=True)
class Outside:
    """Something whose source is not in the tree, or cannot be told."""

    name: str


Bound: TypeAlias = ast.AST | Imported


@functools.cache  # many files are the same in the next release
def parse(text: str) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(text)


@functools.cache
def bindings(scope: ast.Module | ast.ClassDef) -> dict[str, Bound]:
    """Return what each name of a module or a class is bound to; annotations without a value bind nothing."""
    return dict(_bound(scope.body))


@functools.cache
def strings(module: ast.Module) -> frozenset[str]:
    """Return all the strings in a module."""
    return frozenset(n.value for n in ast.walk(module) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def star_imports(module: ast.Module) -> list[Imported]:
    """Return the modules from which a module imports everything."""
    froms = (node for node in module.body if isinstance(node, ast.ImportFrom))
    return [Imported(node.module or "", node.level) for node in froms if node.names[0].name == "*"]


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, Bound]]:
    """Yield what the statements bind, in order; of the branches of one statement the first comes last, as it counts."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, statement
            case ast.Import(names=names):
                for alias in names:
                    top = alias.name.partition(".")[0]
                    yield alias.asname or top, Imported(alias.name if alias.asname else top)
            case ast.ImportFrom(names=names, module=module, level=level):
                for alias in names:
                    yield alias.asname or alias.name, Imported(module or "", level, alias.name)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _targets(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _targets(target, value)
            case ast.If(test=test, body=then, orelse=otherwise):
                yield from _bound(otherwise)
                if text_of(test).split(".")[-1] != "TYPE_CHECKING":
                    yield from _bound(then)
            case ast.Try(body=tried, handlers=handlers, orelse=otherwise, finalbody=last):
                for handler in reversed(handlers):
                    yield from _bound(handler.body)
                yield from _bound([*tried, *otherwise, *last])
            case ast.For(target=target, iter=value, body=inner) | ast.AsyncFor(target=target, iter=value, body=inner):
                yield from _targets(target, value)
                yield from _bound(inner)
            case ast.With(items=items, body=inner):
                for item in items:
                    if item.optional_vars is not None:
                        yield from _targets(item.optional_vars, item.context_expr)
                yield from _bound(inner)
            case ast.While(body=inner):
                yield from _bound(inner)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, Bound]]:
    match target:
        case ast.Name(id=name):
            yield name, value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:  # which part of the value it gets is not known
                yield from _targets(part.value if isinstance(part, ast.Starred) else part, ast.Tuple([value]))


def argument_names(arguments: ast.arguments) -> list[str]:
    """Return the names of a function's parameters in the order of inspect.signature."""
    positional = [*arguments.posonlyargs, *arguments.args]
    last = [arguments.kwarg] if arguments.kwarg else []
    rest = [arguments.vararg] if arguments.vararg else []
    return [argument.arg for argument in (*positional, *rest, *arguments.kwonlyargs, *last)]


def constants(call: ast.expr | None) -> dict[str, object]:
    """Return the keyword arguments of a call that are constants."""
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {k.arg: k.value.value for k in keywords if k.arg and isinstance(k.value, ast.Constant)}


def text_of(node: ast.AST | Outside) -> str:
    """Return the source of something, on one line."""
    return node.name if isinstance(node, Outside) else " ".join(ast.unparse(node).split())
