# SPDX-License-Identifier: Apache-2.0
"""Every place where this package meets vLLM: the list behind docs/patches.md and the drift check (tests/drift)."""

from __future__ import annotations

from vllm_ext import log
from vllm_ext.patching import MORE, Patch, Seam
from vllm_ext.platforms import zen_linear
from vllm_ext.quant import quark

# What vLLM calls, or lets us read, on every release.
HOST = (
    Seam(
        id="host.platform_plugins",
        targets=("vllm.platforms:resolve_current_platform_cls_qualname",),
        parameters=(),
        reason="Asks the entry points of the group vllm.platform_plugins.",
    ),
    Seam(
        id="host.general_plugins",
        targets=("vllm.plugins:load_general_plugins",),
        parameters=(),
        reason="Calls the entry points of the group vllm.general_plugins, in every process.",
    ),
    Seam(
        id="host.environment_variables",
        targets=("vllm.envs:environment_variables",),
        reason="Our variables join this table, so that vLLM does not warn of them and Ray carries them.",
    ),
)
ZEN_CPU = (
    Seam(
        id="zen_cpu.cpu_platform",
        targets=("vllm.platforms.cpu:CpuPlatform",),
        reason="The base of our platform where there is no Zen platform; the platform where zentorch does not load.",
    ),
    Seam(
        id="zen_cpu.in_tree",
        targets=("vllm.platforms.zen_cpu:ZenCpuPlatform",),
        releases=">=0.18",
        reason="The base of our platform.",
    ),
)
ALL: tuple[Seam, ...] = (
    *HOST,
    log.WHEN_CONFIGURED,
    *ZEN_CPU,
    zen_linear.DISPATCH,
    *quark.SEAMS,
)


def _call(parameters: tuple[str, ...] | None) -> str:
    return "" if parameters is None else f"({', '.join('…' if name == MORE else name for name in parameters)})"


def markdown() -> str:
    """Return the text of docs/patches.md."""
    lines = [
        "# Where vllm_ext meets vLLM",
        "",
        "Generated from the declarations (`vllm_ext/seams.py` lists them) by `make docs`; a test keeps the two equal.",
        "`make drift` compares every line with the source of every vLLM release since 0.17.0.",
        "",
        "## Replaced functions",
        "",
    ]
    for seam in ALL:
        if isinstance(seam, Patch):
            lines += [
                f"### {seam.id}",
                "",
                *(f"* replaces: `{target}{_call(seam.parameters)}`" for target in seam.targets),
                f"* vLLM releases: {seam.releases or 'all'}",
                f"* why: {seam.reason}",
                f"* upstream: {seam.upstream}",
                f"* goes when: {seam.remove_when}",
                "",
            ]
    lines += ["## Names that must be there", "", "| id | name | vLLM releases | what for |", "|---|---|---|---|"]
    for seam in ALL:
        if not isinstance(seam, Patch):
            names = "<br>".join(f"`{target}{_call(seam.parameters)}`" for target in seam.targets)
            lines.append(f"| {seam.id} | {names} | {seam.releases or 'all'} | {seam.reason} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
