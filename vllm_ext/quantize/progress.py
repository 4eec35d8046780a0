# SPDX-License-Identifier: Apache-2.0
"""Numbered steps on stderr: a bar where a step can be counted, on a terminal; a line per finished step anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Progress:
    """Tells the user which of *steps* steps is running and, where it can be counted, how far it is."""

    def __init__(self, steps: int, enabled: bool) -> None:
        self._steps = steps
        self._enabled = enabled
        self._terminal = enabled and sys.stderr.isatty()
        self._number = 0
        self._label = ""
        self._started = 0.0

    def begin(self, title: str) -> None:
        """The running step is done and the one called *title* starts."""
        self.end()
        self._number += 1
        self._label = f"[{self._number}/{self._steps}] {title}"
        self._started = time.monotonic()
        if self._terminal:
            print(f"{self._label} ...", end="\r", file=sys.stderr, flush=True)

    def end(self) -> None:
        """The running step, if any, is done."""
        if self._label:
            self.say(f"{self._label}: {time.monotonic() - self._started:.1f} s")
            self._label = ""

    def say(self, message: str) -> None:
        """A line of its own."""
        if self._enabled:
            print(message, file=sys.stderr, flush=True)

    @contextmanager
    def adopt(self, packages: tuple[str, ...], loops: Mapping[str, tuple[str | None, str | None]]) -> Iterator[None]:
        """Loops of other packages report here instead of drawing tqdm bars of their own.

        *loops* maps a bar's description to the titles of the step to begin with it (None: it belongs to the
        running one) and of the step to begin after it (None: none). Other bars are silent. Only modules of
        *packages* that are imported already are adopted.
        """

        def bar(items: Any = None, *_: Any, desc: str = "", total: int | None = None, **__: Any) -> Any:
            if items is None:
                return _Silent()
            return self._each(items, total, *loops[desc]) if desc in loops else items

        replaced: list[tuple[ModuleType, str, Any]] = []
        for name, module in list(sys.modules.items()):
            if name.startswith(packages):
                for attribute in ("tqdm", "_tqdm"):
                    original = vars(module).get(attribute)
                    if callable(original):
                        replaced.append((module, attribute, original))
                        setattr(module, attribute, bar)
        try:
            yield
        finally:
            for module, attribute, original in replaced:
                setattr(module, attribute, original)

    def _each(self, items: Any, total: int | None, before: str | None, after: str | None) -> Iterator[Any]:
        from tqdm import tqdm

        if before is not None:
            self.begin(before)
        yield from tqdm(items, desc=self._label, total=total, disable=not self._terminal, leave=False)
        if after is not None:
            self.begin(after)


class _Silent:
    """Stands for a bar that is moved by hand."""

    def update(self, _: float = 1) -> None:
        """Nothing is shown."""

    def close(self) -> None:
        """Nothing is open."""
