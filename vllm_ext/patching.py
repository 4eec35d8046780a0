# SPDX-License-Identifier: Apache-2.0
"""The places where this package meets vLLM's source, as data: what it leans on, and what it replaces.

`Seam`: a name that must be there. `Patch`: a function that is replaced because vLLM has no seam for the purpose.
`Group`: patches that are in force together or not at all. The fields are the one home of these facts: the probes at run
time, the drift check over all releases (tests/drift) and docs/patches.md read them (`vllm_ext.seams` has the list).
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from vllm_ext import post_import

MORE = "..."  # at the end of `Seam.parameters`: others may follow

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
OnFailure = Callable[[str], None]


class PatchError(RuntimeError):
    """A seam is not as declared, or a patch did not apply; nothing of the patch is in force."""


def misfit(declared: Sequence[str] | None, actual: Sequence[str]) -> str | None:
    """Return the sentence that says how parameter names differ from the declared ones, or None."""
    if declared is None:
        return None
    open_end = bool(declared) and declared[-1] == MORE
    wanted = tuple(declared[:-1] if open_end else declared)
    seen = tuple(actual[: len(wanted)] if open_end else actual)
    return None if seen == wanted else f"has the parameters ({', '.join(actual)}), not ({', '.join(declared)})"


@dataclass(kw_only=True)
class Seam:
    """A name in vLLM that must be there.

    targets: candidates in order, each "module:function", "module:Class", "module:Class.method" or "module:VARIABLE";
    the first that exists counts. parameters: names of its parameters ("self" among them; of a class: its fields or
    those of ``__init__`` without self), `MORE` last where others may follow; None: they do not matter.
    releases: the vLLM releases (version specifier) in which it must be there, "" for all; documentation and the drift
    check read it, run time probes. reason: what for.
    """

    id: str
    targets: tuple[str, ...]
    reason: str
    parameters: tuple[str, ...] | None = None
    releases: str = ""

    def missing(self) -> str | None:
        """Import what is needed and return what is not as declared in the installed vLLM, or None."""
        try:
            self.find()
        except PatchError as error:
            return str(error)
        return None

    def find(self) -> tuple[ModuleType, Any, str]:
        """Return (module, module or class that has the name, name) of the first target that exists.

        Raises PatchError when none does or its parameters are not the declared ones. Imports the targets' modules.
        """
        reasons = []
        for target in self.targets:
            module_name, path = target.split(":")
            try:
                return self.find_in(importlib.import_module(module_name), path)
            except (ImportError, AttributeError) as error:
                reasons.append(f"{target}: {error}")
        raise PatchError(f"{self.id}: {'; '.join(reasons)}")

    def find_in(self, module: ModuleType, path: str) -> tuple[ModuleType, Any, str]:
        """The same for one path in a module that is imported. Raises AttributeError or PatchError."""
        *outer, name = path.split(".")
        owner: Any = module
        for part in outer:
            owner = getattr(owner, part)
        value = getattr(owner, name)
        if self.parameters is not None:
            different = misfit(self.parameters, list(inspect.signature(value).parameters))
            if different:
                raise PatchError(f"{self.id}: {module.__name__}:{path} {different}")
        return module, owner, name


@dataclass(kw_only=True)
class Patch(Seam):
    """One replacement of a function.

    make: takes the original function, returns its replacement, which takes the same parameters.
    upstream: the issue, pull request or release that tells the story. remove_when: what must be true before the patch
    can be deleted. native: a name ("module:...") whose presence in a release says that vLLM has it by itself; the suite
    fails when the lowest supported release has it, or a release in `releases` does.

    `apply` replaces at once what is imported and otherwise waits for the import. A function is replaced under every
    name in vLLM that is bound to it, and read back, or nothing is changed.
    """

    make: Make
    upstream: str
    remove_when: str
    native: str | None = None
    _bound: list[_Binding] = field(default_factory=list, repr=False)
    _armed: bool = field(default=False, repr=False)
    _on_failure: OnFailure | None = field(default=None, repr=False)
    stale: list[str] = field(default_factory=list, repr=False)  # modules outside vLLM that still hold the original

    @property
    def state(self) -> str:
        """ "applied", "pending" (the module is not imported yet) or "off"."""
        return "applied" if self._bound else "pending" if self._armed else "off"

    @property
    def applied(self) -> bool:
        return bool(self._bound)

    def apply(self, on_failure: OnFailure | None = None) -> None:
        """Put the patch in force, now or when its module is imported. Again: does nothing.

        Raises PatchError naming what failed now. What fails later, inside an import of vLLM's, must not stop that
        import: *on_failure* is then called with the sentence.
        """
        if self._armed or self.applied:
            return
        self._on_failure = on_failure
        for target in self.targets:
            module_name, path = target.split(":")
            if post_import.is_imported(module_name):
                try:
                    self._install(*self.find_in(sys.modules[module_name], path))
                    break
                except AttributeError:
                    continue
        else:
            if all(post_import.is_imported(target.split(":")[0]) for target in self.targets):
                raise PatchError(f"{self.id}: none of {', '.join(self.targets)} is there")
        self._arm()

    def _arm(self) -> None:
        self._armed = True
        for module_name in {target.split(":")[0] for target in self.targets}:
            post_import.when_imported(module_name, self._imported)

    def _imported(self, module: ModuleType) -> None:
        """A target's module has been imported, again perhaps."""
        paths = [path for name, path in (target.split(":") for target in self.targets) if name == module.__name__]
        try:
            for path in paths:
                try:
                    found = self.find_in(module, path)
                except AttributeError:
                    continue
                if not any(binding.holds() and binding.owner is found[1] for binding in self._bound):
                    self._install(*found)
                return
            others = [t.split(":")[0] for t in self.targets if t.split(":")[0] != module.__name__]
            if not self.applied and all(post_import.is_imported(name) for name in others):
                raise PatchError(f"{self.id}: none of {', '.join(self.targets)} is there")
        except PatchError as error:
            self.revert()
            if self._on_failure is not None:
                self._on_failure(str(error))

    def _install(self, module: ModuleType, owner: Any, name: str) -> None:
        raw = inspect.getattr_static(owner, name)
        kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
        original = raw.__func__ if kind else raw
        replacement: Any = self.make(original)
        package = module.__name__.partition(".")[0]
        holders = list(_imports_of(original, module)) if owner is module else []
        bindings = [
            _Binding(owner, name, raw, kind(replacement) if kind else replacement, own=name in vars(owner)),
            *(_Binding(m, n, raw, replacement) for m, n in holders if m.__name__.partition(".")[0] == package),
        ]
        self.stale = sorted({m.__name__ for m, _ in holders if m.__name__.partition(".")[0] != package})
        for binding in bindings:
            binding.put()
        lost = [str(binding) for binding in bindings if not binding.holds()]
        if lost:
            for binding in bindings:
                binding.take_back()
            raise PatchError(f"{self.id}: {', '.join(lost)} did not keep the replacement")
        self._bound = bindings

    def revert(self) -> list[str]:
        """Put the original back under every name, and wait for no import any more.

        Returns the names that hold neither the original nor our replacement: another package has replaced them since,
        and they are left as they are.
        """
        for module_name in {target.split(":")[0] for target in self.targets}:
            post_import.forget(module_name, self._imported)
        self._armed = False
        for binding in self._bound[:1]:
            if isinstance(binding.owner, ModuleType):  # whoever imported it by name meanwhile got the replacement
                for module, name in list(_imports_of(binding.replacement, binding.owner)):
                    setattr(module, name, binding.original)
        taken = [str(binding) for binding in self._bound if not binding.take_back()]
        self._bound, self.stale = [], []
        return taken


@dataclass
class _Binding:
    """One name that holds a function: *name* in *owner* (module or class)."""

    owner: Any
    name: str
    original: Any
    replacement: Any
    own: bool = True  # False: inherited, so that the original comes back by deleting the name

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__module__', '') or ''}:{self.owner.__name__}.{self.name}".lstrip(":")

    def put(self) -> None:
        setattr(self.owner, self.name, self.replacement)

    def holds(self) -> bool:
        return inspect.getattr_static(self.owner, self.name, None) is self.replacement

    def take_back(self) -> bool:
        if not self.holds():
            return inspect.getattr_static(self.owner, self.name, None) is self.original
        if self.own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        return True


@dataclass
class Group:
    """Patches that belong together: all in force (or waiting for their imports), or none."""

    id: str
    patches: tuple[Patch, ...]

    def apply(self, on_failure: OnFailure | None = None) -> None:
        """Apply all. Raises PatchError when one fails now; one that fails at a later import takes the others back and
        is told to *on_failure*."""

        def failed_later(reason: str) -> None:
            self.revert()
            if on_failure is not None:
                on_failure(reason)

        try:
            for patch in self.patches:
                patch.apply(failed_later)
        except Exception:
            self.revert()
            raise

    def revert(self) -> list[str]:
        """Take all back, the last first; returns what `Patch.revert` returns, together."""
        return [name for patch in reversed(self.patches) for name in patch.revert()]


def _imports_of(function: Any, home: ModuleType) -> Iterable[tuple[ModuleType, str]]:
    """Yield (module, name) for every module that has bound *function* by a ``from`` import."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module is not home:
            for name, value in list(vars(module).items()):
                if value is function:
                    yield module, name
