# SPDX-License-Identifier: Apache-2.0
"""The quantized model computes what its weights say: against the dequantized model, in bf16 and in fp32.

Two bf16 implementations of one model differ by rounding, which thirty layers carry on; so the fp32 run of the
dequantized model is the truth, and the quantized one may be no further from it than the dequantized bf16 one is.
"""

from __future__ import annotations

import importlib.metadata
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import PreTrainedTokenizerFast

from tests.conftest import ROOT
from tests.serve.conftest import run_engine
from vllm_ext import native
from vllm_ext.quant.mxfp4 import cpu, reference

CONTEXT, LOGIT_TOKENS, CHUNKS = 1024, 24, 4
ENGINE = {"enforce_eager": True, "max_model_len": CONTEXT + 8, "enable_prefix_caching": False}


def english(tokenizer) -> list[int]:
    """Tokens of licence texts: ours and numpy's."""
    numpy_license = next(file for file in importlib.metadata.files("numpy") if file.name == "LICENSE.txt")
    text = (ROOT / "LICENSE").read_text() + Path(numpy_license.locate()).read_text()
    ids = tokenizer(text)["input_ids"]
    assert len(ids) >= CHUNKS * CONTEXT
    return ids


@pytest.fixture(scope="module")
def results(models, tmp_path_factory):
    """{run: (perplexity, logits [tokens - 1, vocabulary])} for the quantized, dense and exact (dense in fp32) model."""
    ids = english(PreTrainedTokenizerFast.from_pretrained(models("demo")))
    chunks = [ids[start : start + CONTEXT] for start in range(0, CHUNKS * CONTEXT, CONTEXT)]
    found = {}
    for name, model, dtype in [
        ("quantized", "demo", "bfloat16"),
        ("dense", "demo-dense", "bfloat16"),
        ("exact", "demo-dense", "float32"),
    ]:
        folder = tmp_path_factory.mktemp(name)
        common = {**ENGINE, "model": str(models(model)), "dtype": dtype}
        (scores,) = run_engine(folder, {"llm": common, "steps": [{"do": "score", "prompts": chunks}]})
        raw = {**common, "logprobs_mode": "raw_logits", "max_logprobs": -1}
        step = {"do": "logits", "prompt": ids[:LOGIT_TOKENS], "file": str(folder / "logits.npy")}
        run_engine(folder, {"llm": raw, "steps": [step]})
        logprobs = [value for chunk in scores for value in chunk]
        found[name] = (math.exp(-sum(logprobs) / len(logprobs)), np.load(folder / "logits.npy"))
    return found


def test_perplexity(results):
    quantized, dense, exact = (results[name][0] for name in ("quantized", "dense", "exact"))
    print(f"perplexity: quantized {quantized:.4f}, dense bf16 {dense:.4f}, dense fp32 {exact:.4f}")
    assert abs(quantized / dense - 1) <= 0.003
    assert abs(quantized / exact - 1) <= 0.005


def test_logits(results):
    exact = results["exact"][1]
    errors = {name: np.abs(results[name][1] - exact) for name in ("quantized", "dense")}
    for name, error in errors.items():
        print(f"logit error of {name} against fp32: mean {error.mean():.4f}, max {error.max():.4f}")
    assert errors["quantized"].mean() <= 1.15 * errors["dense"].mean()
    assert errors["quantized"].max() <= 1.5 * errors["dense"].max()
    assert (results["quantized"][1].argmax(1) == results["dense"][1].argmax(1)).mean() >= 0.9


def test_every_layer_shape(models):
    """With the model's own weights, each of its layer shapes equals the fp64 product rounded to bf16 in 99.9 %, and
    nowhere differs by more than one unit in the last place of a bf16 (of the largest term, where terms cancel)."""
    assert native.status().available
    torch.manual_seed(0)
    seen = {}
    with safe_open(models("demo") / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
            if name.endswith(".weight_scale"):
                weight = file.get_tensor(name.removesuffix("_scale"))
                seen.setdefault(tuple(weight.shape), (weight, file.get_tensor(name)))
    assert len(seen) == 4
    for weight, scale in seen.values():
        x = torch.randn(64, 2 * weight.shape[1], dtype=torch.bfloat16)
        want = reference.linear_reference(x, weight, scale)
        largest = (x.double().abs() @ reference.dequantize(weight, scale, torch.float64).abs().T).float()
        cpu.pack_(weight, scale)
        got = cpu.linear(x, weight, scale)
        assert (got == want).float().mean() >= 0.999, weight.shape
        gap = (got.float() - want.float()).abs()
        assert (gap <= torch.maximum(want.float().abs() * 2**-7, largest * 2**-20)).all(), weight.shape
