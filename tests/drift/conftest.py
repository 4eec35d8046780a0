# SPDX-License-Identifier: Apache-2.0
"""The releases' source, and the closing lines that say what was checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.drift.releases import CHECKED, Index, Release, news
from tests.drift.static import Tree

SEEN = "checked declaration"  # the key under which a test reports what it checked


@pytest.fixture(scope="session")
def releases() -> Iterator[dict[str, Release]]:
    """All checked releases by version; their files come from the cache or the index."""
    index = Index()
    found = {version: Release(version, index) for version in CHECKED}
    yield found
    for release in found.values():
        release.close()


@pytest.fixture(scope="session")
def tree_of(releases: dict[str, Release]) -> Callable[[str], Tree]:
    """Return the source tree of a version."""
    trees = {version: Tree(release.read) for version, release in releases.items()}
    return trees.__getitem__


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, [])]
    seen = [value for report in reports for key, value in getattr(report, "user_properties", ()) if key == SEEN]
    if seen:
        releases, seams = ({pair[i] for pair in seen} for i in (0, 1))
        terminalreporter.section("drift")
        terminalreporter.line(f"{len(releases)} releases of vLLM x {len(seams)} declarations: {len(seen)} checks")
        terminalreporter.line(news(Index()))
