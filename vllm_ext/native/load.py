# SPDX-License-Identifier: Apache-2.0
"""Find the native library, build it once into the cache where it is missing, and load it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_ext.native import build

PREBUILT_NAME = "_native.abi3.so"  # in the package folder, put there by setup.py
CACHED_NAME = "_native.so"
LOCK_SECONDS = 300.0


@dataclass(frozen=True)
class NativeStatus:
    """What `load_native` found.

    Attributes:
        available: the operators of `torch.ops.vllm_ext` can be called.
        path: instructions in use: "avx512_bf16", "avx2", or "none".
        origin: "wheel" (came with the package), "cache" (built on this machine), or "none".
        file: the library, or None.
        reason: one sentence in plain words; for an unavailable library it ends with the remedy.
    """

    available: bool
    path: str
    origin: str
    file: str | None
    reason: str


_lock = threading.Lock()
_loaded: NativeStatus | None = None
_failed: dict[tuple[Path, bool], NativeStatus] = {}


def load_native(cache_dir: Path | None = None, allow_build: bool = True) -> NativeStatus:
    """Load the native library into this process, once; building it into the cache takes some seconds, once per machine.

    Looked for in this order: the file that came with the package, the cache, and (if `allow_build`) the compiler. A
    success is remembered for the process, a failure for the same arguments.

    Args:
        cache_dir: folder of the cache; None is `$XDG_CACHE_HOME/vllm_ext` or `~/.cache/vllm_ext`.
        allow_build: compile where no built library is found.

    Returns:
        The outcome. Never raises: what went wrong is in `reason`.
    """
    global _loaded
    folder = cache_dir or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vllm_ext"
    with _lock:
        if _loaded is not None:
            return _loaded
        key = (folder, allow_build)
        if key not in _failed:
            try:
                status = _load(folder, allow_build)
            except build.NativeBuildError as error:
                status = _unavailable(str(error))
            except OSError as error:
                status = _unavailable(
                    f"the kernel cache {folder} cannot be used ({error}): choose a folder that can be written"
                )
            except Exception as error:  # a broken library must not take the server down with it
                status = _unavailable(
                    f"the native kernels cannot be loaded ({type(error).__name__}: {error}): report this"
                )
            if status.available:
                _loaded = status
                return status
            _failed[key] = status
        return _failed[key]


def set_cpu_path(name: str) -> bool:
    """Use other instructions than the best ones; for tests and benchmarks.

    Args:
        name: "avx512_bf16" or "avx2".

    Returns:
        Whether the CPU has them; if not, nothing changes. False also while the library is not loaded.
    """
    if _loaded is None or _loaded.file is None:
        return False
    return bool(ctypes.CDLL(_loaded.file).vllm_ext_set_cpu_path(name.encode()))


def _unavailable(reason: str) -> NativeStatus:
    return NativeStatus(available=False, path="none", origin="none", file=None, reason=reason)


def _load(folder: Path, allow_build: bool) -> NativeStatus:
    import torch

    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or (int(found[1]), int(found[2])) < build.MIN_TORCH:
        return _unavailable(
            f"torch {torch.__version__} is older than 2.10, whose stable ABI the native kernels need: upgrade torch"
        )

    sources = build.find_sources()
    prebuilt = Path(__file__).resolve().parent.parent / PREBUILT_NAME
    if prebuilt.is_file() and build.is_built_from(prebuilt, sources):  # in a source checkout it may be an old one
        try:
            return _open(prebuilt, "wheel")
        except OSError:  # made for another system, say with a newer libstdc++: build one for this system instead
            pass

    library = folder / f"native-{build.build_id(sources)}" / CACHED_NAME
    if not _is_whole(library):
        if not allow_build:
            return _unavailable(f"the native kernels are not built yet and building is off: no {library}")
        _build_once(library, sources)
    return _open(library, "cache")


def _open(library: Path, origin: str) -> NativeStatus:
    """Register the operators of `library` with torch. Raises OSError where the dynamic loader refuses it."""
    import torch

    torch.ops.load_library(str(library))
    cpu_path = ctypes.CDLL(str(library)).vllm_ext_cpu_path
    cpu_path.restype = ctypes.c_char_p
    path = cpu_path().decode()
    if path == "none":
        return _unavailable("this CPU lacks AVX2, FMA or F16C, which the native kernels need: use a newer machine")
    _register_fakes()
    return NativeStatus(True, path, origin, str(library), f"{path} kernels loaded from {library}")


def _register_fakes() -> None:
    """Tell torch.compile the shapes and dtypes of the operators."""
    import torch

    def linear(
        x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], weight.shape[0]))

    def permute(weight: torch.Tensor, scale: torch.Tensor) -> None:
        return None

    torch.library.register_fake("vllm_ext::mxfp4_linear", linear)
    torch.library.register_fake("vllm_ext::mxfp4_pack", permute)
    torch.library.register_fake("vllm_ext::mxfp4_unpack", permute)


def _build_once(library: Path, sources: Path) -> None:
    """Build `library` unless another process has done so while we waited for the lock."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with _file_lock(library.parent / "lock"):
        if _is_whole(library):
            return
        build.build_library(library, sources)
        digest = _digest_file(library)
        temporary = digest.with_suffix(".tmp")
        temporary.write_text(_sha256(library))
        os.replace(temporary, digest)


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_whole(library: Path) -> bool:
    """Whether the library is there as it was built. Mapping one cut short can kill the process."""
    try:
        return _digest_file(library).read_text() == _sha256(library)
    except FileNotFoundError:
        return False


@contextmanager
def _file_lock(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold an exclusive lock on `path`, which the system releases when the process dies.

    Raises:
        NativeBuildError: another process kept it for `seconds`.
    """
    deadline = time.monotonic() + seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise build.NativeBuildError(
                        f"another process has held {path} for {seconds:.0f} s: end it, or use another cache folder"
                    ) from None
                time.sleep(0.1)
        yield
