# SPDX-License-Identifier: Apache-2.0
"""The JSON files beside the weights, written so that transformers 4 and 5 both read them rightly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from vllm_ext.quantize.errors import QuantizeError


def finish(folder: Path, source: Path | None, kept: list[str]) -> None:
    """Settle config.json, tokenizer_config.json and generation_config.json of an exported *folder*.

    *source* is the model folder quantized, None for GGUF. *kept* names every module with a weight that stayed
    bf16; it becomes the exclude list, as amd-quark lists only the layer types that it knows.
    """
    exported = read(folder / "config.json")
    config = exported if source is None else read(source / "config.json")
    config.pop("_model_name_or_path", None)  # a GGUF's title, which is no place to load from
    quantization = exported.get("quantization_config")
    if not isinstance(quantization, dict):
        raise QuantizeError("amd-quark wrote a config.json without quantization_config: report this model.")
    quantization["exclude"] = list(dict.fromkeys([*kept, *quantization.get("exclude", [])]))
    config["quantization_config"] = quantization
    config.setdefault("architectures", exported.get("architectures"))
    _for_both_versions(config)
    write(folder / "config.json", config)
    if source is not None and (source / "generation_config.json").is_file():
        # amd-quark switches do_sample on where transformers 5 would refuse the original.
        shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")
    if (folder / "tokenizer_config.json").is_file():
        tokenizer = read(folder / "tokenizer_config.json")
        _tokenizer_for_both_versions(tokenizer, (folder / "tokenizer.json").is_file())
        write(folder / "tokenizer_config.json", tokenizer)


def _for_both_versions(config: dict[str, Any]) -> None:
    config["dtype"] = config["torch_dtype"] = "bfloat16"
    for part in (config, *(value for key, value in config.items() if key.endswith("text_config"))):
        if not isinstance(part, dict):
            continue
        if part is not config and ("dtype" in part or "torch_dtype" in part):
            part["dtype"] = part["torch_dtype"] = "bfloat16"
        rope = part.get("rope_parameters")
        # transformers 4 ignores rope_parameters and would fall back to a base of 10000 without a word.
        if isinstance(rope, dict) and "rope_theta" in rope:
            part.setdefault("rope_theta", rope["rope_theta"])
            scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
            if scaling.get("rope_type", "default") != "default":
                part.setdefault("rope_scaling", scaling)


def _tokenizer_for_both_versions(tokenizer: dict[str, Any], fast: bool) -> None:
    if fast and tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    # How the tokenizer was loaded on the machine that quantized, which transformers 5 writes down.
    for key in ("is_local", "local_files_only"):
        tokenizer.pop(key, None)
    # transformers 4 expects a mapping here and dies of the list that transformers 5 writes.
    extra = tokenizer.get("extra_special_tokens")
    if isinstance(extra, list):
        del tokenizer["extra_special_tokens"]
        if extra:
            tokenizer.setdefault("additional_special_tokens", extra)


def read(path: Path) -> dict[str, Any]:
    """The JSON object in *path*; QuantizeError when it holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QuantizeError(f"{path} cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise QuantizeError(f"{path} holds no JSON object.")
    return content


def write(path: Path, content: dict[str, Any]) -> None:
    """Write *content* the way transformers lays its configs out."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
