# SPDX-License-Identifier: Apache-2.0
"""The demo checkpoint that `make` builds: a real model, from a GGUF file."""

from __future__ import annotations

import json

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from demo.gguf_path import gguf_path
from tests.conftest import ROOT
from vllm_ext.quantize import model, source

DEMO = ROOT / "build" / "demo" / "SmolLM2-135M-Instruct-MXFP4"


@pytest.fixture(autouse=True)
def built() -> None:
    assert (DEMO / "config.json").is_file(), f"{DEMO} is missing: run `make test`, which builds it"


def test_the_file_in_the_package_is_a_gguf_and_is_read_without_the_package() -> None:
    origin = source.resolve(str(gguf_path()), progress=False)
    assert origin.kind == "gguf"
    outline = model.outline(origin)
    assert outline.architecture == "LlamaForCausalLM"
    assert (len(outline.linears), outline.head, outline.parameters) == (211, "lm_head", 134_515_008)


def test_its_config_is_read_alike_by_transformers_4_and_5() -> None:
    config = json.loads((DEMO / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"] and config["tie_word_embeddings"] is True
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["quantization_config"]["exclude"] == ["lm_head"]
    assert "_model_name_or_path" not in config


def test_every_linear_layer_is_packed() -> None:
    with safe_open(DEMO / "model.safetensors", framework="pt") as file:
        shapes = {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert sum(name.endswith("_scale") for name in shapes) == 30 * 7
    assert shapes["model.layers.29.mlp.down_proj.weight"] == ("U8", [576, 768])
    assert shapes["model.layers.29.mlp.down_proj.weight_scale"] == ("U8", [576, 48])
    assert shapes["model.embed_tokens.weight"] == ("BF16", [49152, 576])
    assert "lm_head.weight" not in shapes


def test_the_tokenizer_and_the_chat_template_were_rebuilt() -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert len(tokenizer) == 49152
    text = "The year 2024 costs €5."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    # SmolLM2 splits numbers into single digits.
    assert [tokenizer.decode(token) for token in tokenizer("2024")["input_ids"]] == ["2", "0", "2", "4"]
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
