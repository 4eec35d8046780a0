# SPDX-License-Identifier: Apache-2.0
"""Calls a function after a module has been imported, every time that happens, until it is told to stop.

Persistent on purpose: a hook that fires once is lost when the first import fails half-way and is tried again, or when
the module is reloaded. Standard library only.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]

_callbacks: dict[str, list[Callback]] = {}
_lock = threading.RLock()
_searching = threading.local()


def is_imported(name: str) -> bool:
    """Return whether the module is in sys.modules and its code has run to the end."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def when_imported(name: str, callback: Callback) -> None:
    """Call *callback* with the module after each successful import or reload of *name* from now on.

    What is imported already is not looked at. An exception of the callback comes out of the import statement.
    """
    with _lock:
        if callback not in _callbacks.setdefault(name, []):
            _callbacks[name].append(callback)
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)


def forget(name: str, callback: Callback) -> None:
    """Undo `when_imported`. The last one takes our finder out of sys.meta_path."""
    with _lock:
        if callback in _callbacks.get(name, ()):
            _callbacks[name].remove(callback)
            if not _callbacks[name]:
                del _callbacks[name]
        if not _callbacks and _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find the module, and wraps the loader they name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        busy: set[str] = _searching.__dict__.setdefault("names", set())
        if fullname not in _callbacks or fullname in busy:
            return None
        busy.add(fullname)  # a finder may itself ask for the module
        try:
            for finder in list(sys.meta_path):
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(fullname, path, target)
                    if spec is not None:
                        if hasattr(spec.loader, "exec_module"):
                            spec.loader = _Loader(spec.loader)  # type: ignore[arg-type]
                        return spec
            return None
        finally:
            busy.discard(fullname)


class _Loader(importlib.abc.Loader):
    """Runs the module as its own loader does, then the callbacks."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Sources and resources are looked up through these; nobody shall meet the wrapper there.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for callback in list(_callbacks.get(module.__name__, ())):
            callback(module)


_FINDER = _Finder()
