# SPDX-License-Identifier: Apache-2.0
"""Is this environment able to quantize? Answered from package metadata, before anything heavy is imported."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from vllm_ext.host import VLLM_DISTRIBUTIONS, version_of
from vllm_ext.quantize.errors import InputError

INSTALL = 'python3 -m venv quark-env && quark-env/bin/pip install "vllm-ext[quark]"'

_DISTRIBUTIONS = ("amd-quark", "torch", "transformers", "accelerate", "safetensors", "psutil", "tqdm")
_COMPILERS = ("c++", "g++", "clang++")


def check_packages() -> None:
    """Raise InputError naming every missing package and the commands that install them."""
    missing = [name for name in _DISTRIBUTIONS if version_of(name) is None]
    if missing:
        raise InputError(
            f"{', '.join(missing)} not installed in this environment ({sys.prefix}), and quantizing needs it: "
            f"make an environment of its own with `{INSTALL}`, then run `quark-env/bin/vllm-ext quantize ...`."
        )


def check_gguf_reader() -> None:
    """Raise InputError when GGUF files cannot be read here."""
    if version_of("gguf") is None:
        raise InputError(
            f"Reading a GGUF file needs the package gguf, not installed in this environment ({sys.prefix}): "
            "install it with `pip install gguf`."
        )


def find_build_tools() -> str | None:
    """Set PATH and CXX so that amd-quark can compile its extension; what it lacks for that, as a sentence, or None.

    No error in itself: once compiled, the extension is cached. A virtual environment that is used without being
    activated has its ninja beside the interpreter only, where torch's build step does not look.
    """
    scripts = str(Path(sys.executable).parent)
    if shutil.which("ninja") is None and shutil.which("ninja", path=scripts) is not None:
        os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), scripts])
    missing = []
    if shutil.which("ninja") is None:
        missing.append("ninja (`pip install ninja`)")
    compilers = [name for name in (os.environ.get("CXX"), *_COMPILERS) if name and shutil.which(name)]
    if compilers:
        os.environ["CXX"] = compilers[0]
    else:
        missing.append("a C++ compiler (`apt-get install g++`, or CXX set to one)")
    if not missing:
        return None
    return f"amd-quark compiles its CPU code on first use and misses {' and '.join(missing)}."


def vllm_warning() -> str | None:
    """A sentence for environments that also hold vLLM, else None."""
    for name in VLLM_DISTRIBUTIONS:
        version = version_of(name)
        if version is not None:
            return (
                f"{name} {version} is installed in this environment too: amd-quark beside vLLM brings a plugin "
                "(quark_online_quant) that wraps vLLM's EngineArgs in every server started from here; "
                f"an environment of its own avoids that (`{INSTALL}`)."
            )
    return None
