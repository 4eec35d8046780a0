# SPDX-License-Identifier: Apache-2.0
"""The rules: a declaration fits a release, and a patch that vLLM no longer needs does not stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packaging.specifiers import SpecifierSet

from tests.drift.static import Missing, Tree, Unreadable
from vllm_ext.patching import Patch, Seam, misfit


def applies(seam: Seam, release: str) -> bool:
    """Return whether the declaration says that *release* must have the seam."""
    return SpecifierSet(seam.releases).contains(release)


def difference(seam: Seam, release: str, tree: Tree) -> str | None:
    """Return the sentence that says how *release* differs from the declaration, or None.

    As at run time, the first target that exists counts.
    """
    reasons = []
    for target in seam.targets:
        try:
            found = tree.find(target)
        except Missing as error:
            reasons.append(f"{target}: {error}")
            continue
        if seam.parameters is None:
            return None
        try:
            different = misfit(seam.parameters, tree.parameters(found))
        except Unreadable as error:
            different = f"must have the parameters ({', '.join(seam.parameters)}), but {error}"
        return different and f"{seam.id}: in vLLM {release}, {target} {different}"
    return f"{seam.id}: vLLM {release} has none of its targets ({'; '.join(reasons)})"


def outlived(seam: Seam, releases: Sequence[str], tree_of: Callable[[str], Tree]) -> list[str]:
    """Return the sentences that say why the declaration should go, or be narrowed. *releases*: the supported ones."""
    meant = [release for release in releases if applies(seam, release)]
    if not meant:
        return [f"{seam.id}: no supported vLLM release is {seam.releases}, so it can be deleted"]
    if not isinstance(seam, Patch) or seam.native is None:
        return []
    if _has(tree_of(releases[0]), seam.native):
        return [f"{seam.id}: {releases[0]}, the lowest supported vLLM, has {seam.native}, so it can be deleted"]
    return [
        f"{seam.id}: vLLM {release} has {seam.native}, but 'releases' ({seam.releases or 'all'}) covers it"
        for release in meant
        if _has(tree_of(release), seam.native)
    ]


def _has(tree: Tree, target: str) -> bool:
    try:
        tree.find(target)
    except Unreadable:
        raise
    except Missing:
        return False
    return True
