# SPDX-License-Identifier: Apache-2.0
"""JSON files that transformers 4 and 5 read alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vllm_ext.quantize import configs
from vllm_ext.quantize.errors import QuantizeError


def finish(tmp_path: Path, config: dict[str, Any], tokenizer: dict[str, Any] | None = None) -> dict[str, Any]:
    config = {"quantization_config": {"quant_method": "quark", "exclude": ["lm_head"]}, **config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    configs.finish(tmp_path, None, ["lm_head", "model.layers.0.mlp.gate"])
    return configs.read(tmp_path / "config.json")


def test_both_spellings_of_the_dtype_and_of_rope(tmp_path: Path) -> None:
    config = finish(tmp_path, {"dtype": "float32", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert config["rope_theta"] == 5e5
    assert "rope_scaling" not in config


def test_rope_scaling_is_spelled_for_transformers_4_too(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}
    config = finish(tmp_path, {"text_config": {"dtype": "float16", "rope_parameters": rope}})
    assert config["text_config"]["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert config["text_config"]["torch_dtype"] == config["text_config"]["dtype"] == "bfloat16"


def test_every_bf16_module_is_in_the_exclude_list_once(tmp_path: Path) -> None:
    config = finish(tmp_path, {})
    assert config["quantization_config"]["exclude"] == ["lm_head", "model.layers.0.mlp.gate"]


def test_a_tokenizer_of_transformers_5_is_readable_by_4(tmp_path: Path) -> None:
    finish(tmp_path, {}, {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<a>"], "is_local": True})
    assert configs.read(tmp_path / "tokenizer_config.json") == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": ["<a>"],
    }


def test_a_tokenizer_of_transformers_4_stays(tmp_path: Path) -> None:
    tokenizer = {"tokenizer_class": "Qwen2Tokenizer", "extra_special_tokens": {"image": "<i>"}, "model_max_length": 8}
    finish(tmp_path, {}, tokenizer)
    assert configs.read(tmp_path / "tokenizer_config.json") == tokenizer


def test_a_config_that_is_no_object_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(QuantizeError, match="config.json holds no JSON object"):
        configs.read(tmp_path / "config.json")
