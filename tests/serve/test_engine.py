# SPDX-License-Identifier: Apache-2.0
"""Offline ``LLM()``: LoRA on quantized layers, MLA, reloading, tensor parallelism, memory."""

from __future__ import annotations

import os

import numpy as np
from safetensors import safe_open

from tests.serve.conftest import DEMO
from tests.tools.make_packed import lora_adapter, packed_llama

ENGINE = {"enforce_eager": True, "max_model_len": 256, "enable_prefix_caching": False}
TOKENS = [list(range(100 + 7 * start, 160 + 7 * start)) for start in range(4)]
SCORE = {"do": "score", "prompts": TOKENS}


def gap(one, other):
    """Mean absolute difference of log-probabilities."""
    return float(np.abs(np.array(one) - np.array(other)).mean())


def score(engine, model, steps=(SCORE,), env=None, **arguments):
    results = engine({"llm": {**ENGINE, "model": str(model), **arguments}, "steps": [dict(s) for s in steps]}, env=env)
    return results if len(steps) > 1 else results[0]


def test_offline_answers_paris(engine, models):
    steps = [{"do": "generate", "prompts": ["The capital of France is"], "max_tokens": 1}]
    assert engine({"llm": {**ENGINE, "model": str(models("demo"))}, "steps": steps}) == [[" Paris"]]


def test_lora_on_quantized_layers(engine, models, tmp_path):
    adapter = str(lora_adapter(tmp_path / "adapter", models("demo")))
    step = {"do": "following", "prompts": [ids[:length] for ids in TOKENS for length in (8, 16, 32, 60)]}
    steps = [step, {**step, "lora": adapter}]
    arguments = {"enable_lora": True, "max_lora_rank": 8}
    quantized = score(engine, models("demo"), steps, **arguments)
    dense = score(engine, models("demo-dense"), steps, **arguments)

    def difference(one, other):
        shared = [abs(a[token] - b[token]) for a, b in zip(one, other, strict=True) for token in a.keys() & b.keys()]
        return float(np.mean(shared)) if shared else float("inf")

    effect = difference(dense[0], dense[1])
    print(f"effect of the adapter {effect:.3f}, quantized against dense {difference(quantized[1], dense[1]):.3f}")
    assert effect > 0.3, "the adapter changes what the model says"
    assert difference(quantized[1], dense[1]) < 0.2 * effect


def test_mla_with_a_quantized_kv_b_proj(engine, models):
    with safe_open(models("mla") / "model.safetensors", framework="pt") as file:
        assert any("kv_b_proj.weight_scale" in name for name in file.keys())  # noqa: SIM118
    quantized, dense = (score(engine, models(name)) for name in ("mla", "mla-dense"))
    spread = float(np.array(dense).std())
    print(f"log-probabilities spread {spread:.3f}, quantized against dense {gap(quantized, dense):.4f}")
    assert gap(quantized, dense) < 0.03 * spread


def test_a_second_load_into_the_same_layers(engine, models, edited):
    def double_one_layer(tensors):
        tensors["model.layers.5.mlp.down_proj.weight_scale"] += 1

    other = str(edited("demo", tensors=double_one_layer))
    original = str(models("demo"))
    reload = {"do": "reload", "folder": original}
    steps = [SCORE, reload, SCORE, {"do": "reload", "folder": other}, SCORE, reload, SCORE]
    first, _, again, _, changed, _, back = score(engine, original, steps)
    assert again == first and back == first
    assert gap(changed, first) > 0.01


def test_tensor_parallel_on_two_ranks(engine, models):
    """vLLM binds one NUMA node to each rank by itself; on a machine with one, the cores are named by hand."""
    cores = sorted(os.sched_getaffinity(0))
    assert len(cores) >= 2, "this test needs two cores"
    bind = {"VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[1]}"}
    split = score(engine, models("llama"), env=bind, tensor_parallel_size=2)
    whole, dense = score(engine, models("llama")), score(engine, models("llama-dense"))
    spread = float(np.array(dense).std())
    print(f"spread {spread:.3f}, two ranks against one {gap(split, whole):.4f}, against dense {gap(split, dense):.4f}")
    assert gap(split, whole) < 0.03 * spread and gap(split, dense) < 0.03 * spread


def test_packed_weights_take_a_quarter_of_bf16(engine, tmp_path):
    """Resident memory of twelve layers less that of one, so that all else drops out: over a gigabyte in bf16."""
    sizes = {"hidden": 2048, "intermediate": 8192, "heads": 16, "kv_heads": 4}
    resident, linear = {}, {}
    for layers in (1, 12):
        model = packed_llama(tmp_path / f"layers{layers}", DEMO, layers=layers, **sizes)
        resident[layers], linear[layers] = score(engine, model, [{"do": "memory"}, {"do": "linear_weights"}])
        assert linear[layers]["packed"] == linear[layers]["layers"] == 4 * layers
    kv = sizes["kv_heads"] * sizes["hidden"] // sizes["heads"]
    per_layer = 2 * sizes["hidden"] * (2 * sizes["hidden"] + 2 * kv + 3 * sizes["intermediate"])
    bf16 = 11 * per_layer
    share = (resident[12] - resident[1]) / bf16
    print(
        f"bf16 {bf16 / 1e9:.2f} GB, resident share {share:.3f}, parameters {linear[12]['bytes'] / 12 / per_layer:.4f}"
    )
    assert bf16 > 1e9 and share <= 0.30
