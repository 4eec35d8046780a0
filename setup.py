# SPDX-License-Identifier: Apache-2.0
"""Packages, and the native CPU kernels where a compiler and torch are at hand (else they are built on first use)."""

import importlib.util
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SOURCES = ROOT / "csrc"


def load_builder() -> ModuleType:
    """Import vllm_ext/native/build.py by path: the package itself is not installed yet."""
    spec = importlib.util.spec_from_file_location("vllm_ext_native_build", ROOT / "vllm_ext" / "native" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildNative(build_ext):
    """Builds vllm_ext/_native.abi3.so; without a compiler or torch it says so and leaves it to the first use."""

    def build_extension(self, ext: Extension) -> None:
        builder = load_builder()
        output = Path(self.get_ext_fullpath(ext.name))
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            builder.build_library(output, SOURCES)
        except builder.NativeBuildError as error:
            self.warn(f"native kernels not built now, they will be on first use: {error}")

    def copy_extensions_to_source(self) -> None:
        if Path(self.build_lib, self.get_ext_filename(self.extensions[0].name)).is_file():
            super().copy_extensions_to_source()


setup(
    packages=[
        "vllm_ext",
        "vllm_ext.cli",
        "vllm_ext.native",
        "vllm_ext.platforms",
        "vllm_ext.quant",
        "vllm_ext.quant.mxfp4",
        "vllm_ext.quantize",
        "vllm_ext.csrc",
    ],
    package_dir={"vllm_ext.csrc": "csrc"},
    package_data={"vllm_ext.csrc": ["*.cpp", "*.h"]},
    # One library for every torch (stable ABI) and Python (it is no Python module; abi3 keeps the file name general).
    ext_modules=[Extension("vllm_ext._native", sources=[], py_limited_api=True)],
    cmdclass={"build_ext": BuildNative},
)
