# SPDX-License-Identifier: Apache-2.0
"""Compile the C++ kernels of csrc/ into one shared library.

setup.py loads this file by its path before the package exists, so it imports the standard library only, and torch
inside the one function that needs to know where its headers are.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The oldest torch whose stable ABI has all that csrc/ops.cpp calls (parallel_for came with it).
TORCH_TARGET_VERSION = "0x020a000000000000"
MIN_TORCH = (2, 10)

COMPILE_FLAGS = (
    "-std=c++20",  # what newer torch headers ask for; the older ones accept it
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # the same bits from every compiler: kernels say where they want an fma
    f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
)
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
# A source file says by the end of its name which instructions it may use; all the others run on any x86-64.
INSTRUCTION_SET_FLAGS = {
    "_avx2.cpp": _AVX2_FLAGS,
    "_avx512bf16.cpp": (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"),
}
_COMPILERS = ("g++", "clang++", "c++")
_COMPILE_SECONDS = 240


class NativeBuildError(RuntimeError):
    """The library cannot be built here; the message is one sentence with the remedy."""


def find_sources() -> Path:
    """Folder of the C++ sources: `vllm_ext/csrc` of an installed package, or `csrc` of a source checkout.

    Raises:
        NativeBuildError: neither exists.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "ops.cpp").is_file():
            return folder
    raise NativeBuildError(f"the C++ sources are missing (looked for csrc beside and in {package}): reinstall vllm_ext")


def source_files(sources: Path) -> list[Path]:
    """The files whose contents decide what the library is, sorted by name."""
    return sorted([*sources.glob("*.cpp"), *sources.glob("*.h")])


def flags_for(source: Path) -> tuple[str, ...]:
    """Compiler flags for one source file, include paths not among them."""
    for suffix, flags in INSTRUCTION_SET_FLAGS.items():
        if source.name.endswith(suffix):
            return (*COMPILE_FLAGS, *flags)
    return COMPILE_FLAGS


def build_id(sources: Path) -> str:
    """Digest of all that decides what the library is; not torch's version, since only its stable ABI is used."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in source_files(sources):
        for part in (file.name.encode(), " ".join(flags_for(file)).encode(), file.read_bytes()):
            digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def is_built_from(library: Path, sources: Path) -> bool:
    """Whether `library` was built from these very `sources`; looks into the file without loading it."""
    return f"vllm_ext build {build_id(sources)}".encode() in library.read_bytes()


def build_library(output: Path, sources: Path) -> None:
    """Compile and link every .cpp of `sources` into the shared library `output`.

    The library is linked under a temporary name in the folder of `output` and moved into place, so that `output` never
    exists half-written. It is linked against libtorch_cpu without an rpath: torch must be imported before it is loaded.

    Args:
        output: file to write; its folder is created where missing.
        sources: folder with the sources, see `find_sources`.

    Raises:
        NativeBuildError: not an x86-64 machine, no compiler, no torch, or the compiler failed.
        OSError: the folder of `output` cannot be written.
    """
    _check_machine()
    compiler = _find_compiler()
    include, lib = _torch_folders()
    units = sorted(sources.glob("*.cpp"))
    if not units:
        raise NativeBuildError(f"there are no C++ sources in {sources}: reinstall vllm_ext")

    output.parent.mkdir(parents=True, exist_ok=True)
    define = f'-DVLLM_EXT_BUILD_ID="{build_id(sources)}"'
    with tempfile.TemporaryDirectory(prefix=".build-", dir=output.parent) as folder:
        objects = [Path(folder) / f"{unit.stem}.o" for unit in units]
        commands = [
            [*compiler, *flags_for(unit), define, "-isystem", str(include), "-c", str(unit), "-o", str(obj)]
            for unit, obj in zip(units, objects, strict=True)
        ]
        with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(_run, commands))
        linked = Path(folder) / output.name
        _run([*compiler, "-shared", *map(str, objects), f"-L{lib}", "-ltorch_cpu", "-o", str(linked)])
        os.replace(linked, output)


def can_build() -> bool:
    """Whether the machine, a compiler and torch's headers are there; says nothing about the cache folder."""
    try:
        _check_machine()
        _find_compiler()
        _torch_folders()
    except NativeBuildError:
        return False
    return True


def _check_machine() -> None:
    machine = platform.machine()
    if machine.lower() not in ("x86_64", "amd64"):
        raise NativeBuildError(
            f"the native kernels are written for x86-64, and this machine is {machine}: use the dequantized weights"
        )


def _find_compiler() -> list[str]:
    """The C++ compiler as the start of a command; $CXX may hold arguments, as in "ccache g++"."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    if wanted and shutil.which(wanted[0]):
        return wanted
    for name in _COMPILERS:
        found = shutil.which(name)
        if found:
            return [found]
    raise NativeBuildError(
        f"no C++ compiler found (looked for $CXX, {', '.join(_COMPILERS)}): install g++ 11 or newer, or set CXX"
    )


def _torch_folders() -> tuple[Path, Path]:
    """Folders of torch's headers and libraries."""
    try:
        import torch
    except ImportError as error:
        raise NativeBuildError(f"torch cannot be imported ({error}): install torch >= 2.10 first") from error
    root = Path(torch.__file__).parent
    header = root / "include" / "torch" / "csrc" / "stable" / "ops.h"
    if not header.is_file():
        raise NativeBuildError(f"torch {torch.__version__} has no stable ABI headers ({header}): install torch >= 2.10")
    return root / "include", root / "lib"


def _run(command: list[str]) -> None:
    """Run one compiler command.

    Raises:
        NativeBuildError: it failed; the message ends with the last lines it wrote.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NativeBuildError(
            f"{command[0]} did not finish within {_COMPILE_SECONDS} s: try again on a quieter machine"
        ) from error
    except OSError as error:
        raise NativeBuildError(f"{command[0]} cannot be run ({error}): install g++ 11 or newer, or set CXX") from error
    if done.returncode != 0:
        tail = " | ".join(line.strip() for line in done.stderr.strip().splitlines()[-5:])
        raise NativeBuildError(f"{command[0]} failed (g++ 11 or newer is needed): {tail}")
