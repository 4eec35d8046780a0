# SPDX-License-Identifier: Apache-2.0
"""What SRC means: a folder, a GGUF file or a hub id, resolved to files on this disk."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vllm_ext.quantize.errors import InputError, QuantizeError

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "NOTICE*"]


@dataclass(frozen=True)
class Source:
    """A model on this disk: *path* is the GGUF file, or the folder with config.json and weights."""

    given: str
    kind: Literal["folder", "gguf"]
    path: Path

    @property
    def folder(self) -> Path:
        """Where the model's files lie."""
        return self.path.parent if self.kind == "gguf" else self.path

    @property
    def load_args(self) -> dict[str, Any]:
        """Keyword arguments that make transformers' from_pretrained(folder) read this source."""
        return {"gguf_file": self.path.name} if self.kind == "gguf" else {}

    @property
    def size(self) -> int:
        """Bytes of the weights on disk."""
        if self.kind == "gguf":
            return self.path.stat().st_size
        return sum(path.stat().st_size for path in weight_files(self.path))


def weight_files(folder: Path) -> list[Path]:
    """The weight files transformers would read: safetensors where there are any, else pickled ones.

    With an index only the files it names count: repositories often hold a second copy in another layout.
    """
    for pattern in WEIGHTS:
        found = sorted(folder.glob(pattern))
        if not found:
            continue
        index = folder / ("model.safetensors.index.json" if pattern == WEIGHTS[0] else "pytorch_model.bin.index.json")
        if index.is_file() and not (folder / "model.safetensors").is_file():
            try:
                names = set(json.loads(index.read_text())["weight_map"].values())
            except (ValueError, KeyError, AttributeError) as error:
                raise InputError(f"{index} is no valid weight index ({error}): download the model again.") from error
            missing = sorted(name for name in names if not (folder / name).is_file())
            if missing:
                raise InputError(f"{folder} lacks {missing[0]}, which {index.name} names: download the model again.")
            return sorted(folder / name for name in names)
        return found
    return []


def resolve(given: str, progress: bool) -> Source:
    """Find the model that *given* names, downloading it when it is a hub id.

    Raises InputError when there is none, QuantizeError when the hub cannot be reached.
    """
    path = Path(given).expanduser()
    if path.is_dir():
        return _folder(given, path)
    if path.is_file():
        return _gguf(given, path)
    if not _HUB_ID.fullmatch(given) or given.endswith(".gguf") or given.startswith("."):
        raise InputError(f"SRC {given} does not exist: give a model folder, a .gguf file or a hub id like org/name.")
    return _folder(given, _download(given, progress))


def _folder(given: str, path: Path) -> Source:
    config = path / "config.json"
    if not config.is_file():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs:
            raise InputError(f"SRC {given} is a folder of GGUF files: give one file, for instance {ggufs[0]}.")
        raise InputError(f"SRC {given} holds no config.json: give the folder of a Hugging Face model.")
    try:
        content = json.loads(config.read_text())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise InputError(f"{config} is no valid JSON ({error}): download the model again.") from error
    quantization = content.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        raise InputError(
            f"SRC {given} is already quantized (quant_method {method!r}): give the original bf16 or fp16 model."
        )
    if not weight_files(path):
        raise InputError(f"SRC {given} holds no weights ({' or '.join(WEIGHTS)}): download the model again.")
    return Source(given, "folder", path)


def _gguf(given: str, path: Path) -> Source:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise InputError(
            f"SRC {given} is a file but no GGUF file (it starts with {magic!r}): give a folder or a .gguf."
        )
    return Source(given, "gguf", path)


def _download(repo: str, progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    if not progress:
        disable_progress_bars()
    try:
        folder = Path(snapshot_download(repo, allow_patterns=[*_HUB_FILES, WEIGHTS[0]]))
        if not weight_files(folder):
            folder = Path(snapshot_download(repo, allow_patterns=[*_HUB_FILES, WEIGHTS[1]]))
        return folder
    except GatedRepoError as error:
        raise InputError(
            f"Hub model {repo} needs its licence accepted on its page and a login on this machine: `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"SRC {repo} is neither a folder here nor a model on the hub: check the spelling "
            "(a private one needs `hf auth login`)."
        ) from error
    except LocalEntryNotFoundError as error:
        raise QuantizeError(
            f"SRC {repo} is no folder here, is not in the hub cache, and the hub cannot be reached: connect to the "
            "network, or give the folder of a model that was downloaded elsewhere."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise QuantizeError(f"Downloading {repo} from the hub failed ({reason}): try again; it resumes.") from error
