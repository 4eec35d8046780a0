# SPDX-License-Identifier: Apache-2.0
"""A monkey-patch as data: what it replaces, why no public seam does, and when it can go.

Used only where vLLM has no seam for the purpose. A patch is atomic: the function is replaced under every name that it
is bound to, and read back, or nothing is changed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


class PatchError(RuntimeError):
    """A patch did not apply; nothing of it is in force."""


@dataclass
class Patch:
    """One replacement of a function.

    target: "module:function" or "module:Class.method" of the definition; modules of the same package that have imported
    a function by name are found and rebound, too. make: takes the original, returns the replacement (same parameters).
    reason: why, and which seam is missing in which releases. remove_when: what must be true before it can be deleted.
    """

    id: str
    target: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    reason: str
    remove_when: str
    _bound: list[tuple[Any, str]] = field(default_factory=list, repr=False)
    _original: Any = field(default=None, repr=False)

    @property
    def applied(self) -> bool:
        return bool(self._bound)

    def apply(self) -> None:
        """Replace the function everywhere, or nowhere. Raises PatchError naming what failed. Again: does nothing."""
        if self.applied:
            return
        module, owner, name = self._resolve()
        self._original = getattr(owner, name)
        replacement = self.make(self._original)
        self._bound = [(owner, name), *_imports_of(self._original, module)]
        for place, attribute in self._bound:
            setattr(place, attribute, replacement)
        lost = [place.__name__ for place, attribute in self._bound if getattr(place, attribute) is not replacement]
        if lost:
            self.revert()
            raise PatchError(f"{self.id}: {', '.join(lost)} did not keep the replacement")

    def _resolve(self) -> tuple[ModuleType, Any, str]:
        """Return (module, module or class that has the function, name)."""
        module_name, path = self.target.split(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise PatchError(f"{self.id}: {module_name} cannot be imported: {error}") from error
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part, None)
        if not hasattr(owner, name):
            raise PatchError(f"{self.id}: {self.target} is not there")
        return module, owner, name

    def revert(self) -> None:
        """Put the original back under every name."""
        for place, attribute in self._bound:
            setattr(place, attribute, self._original)
        self._bound = []


def _imports_of(function: Any, home: ModuleType) -> list[tuple[ModuleType, str]]:
    """Return (module, name) for every module of *home*'s package that has bound *function* by a ``from`` import."""
    package = home.__name__.split(".")[0]
    return [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and module is not home and module_name.split(".")[0] == package
        for name, value in list(vars(module).items())
        if value is function
    ]
