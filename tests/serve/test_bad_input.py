# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and settings that cannot be served: one sentence with layer or file, value and remedy."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.serve.conftest import API_SERVER, DEMO, ENGINE_ENV, run_engine
from tests.tools.make_packed import packed_llama

LAYER = "model.layers.3.mlp.down_proj"
SIZES = {"hidden": 128, "heads": 4, "kv_heads": 2, "layers": 4}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return packed_llama(tmp_path_factory.mktemp("bad") / "tiny", DEMO, intermediate=256, **SIZES)


@pytest.fixture(scope="module")
def errors(tiny, tmp_path_factory):
    """{case: what vLLM said} for every bad checkpoint, tried one after the other in one process; a good one is last."""
    folder = tmp_path_factory.mktemp("cases")

    def case(name, config=None, tensors=None, file=None):
        path = folder / name
        shutil.copytree(tiny, path)
        if config:
            content = json.loads((path / "config.json").read_text())
            config(content["quantization_config"])
            (path / "config.json").write_text(json.dumps(content))
        if tensors:
            content = load_file(path / "model.safetensors")
            tensors(content)
            save_file(content, path / "model.safetensors", metadata={"format": "pt"})
        if file:
            file(path / "model.safetensors")

    def scale_255(tensors):
        tensors[f"{LAYER}.weight_scale"][7, 2] = 255

    def lm_head(tensors):
        tensors["lm_head.weight"] = torch.zeros(49152, 64, dtype=torch.uint8)
        tensors["lm_head.weight_scale"] = torch.zeros(49152, 4, dtype=torch.uint8)

    def short_scale(tensors):
        tensors[f"{LAYER}.weight_scale"] = tensors[f"{LAYER}.weight_scale"][:, :-1].contiguous()

    def other_size(tensors):
        tensors[f"{LAYER}.weight"] = tensors[f"{LAYER}.weight"][:, :64].contiguous()
        tensors[f"{LAYER}.weight_scale"] = tensors[f"{LAYER}.weight_scale"][:, :4].contiguous()

    activations = {
        "dtype": "fp4",
        "qscheme": "per_group",
        "group_size": 32,
        "is_dynamic": True,
        "scale_format": "e8m0",
        "ch_axis": -1,
    }
    case("scale_255", tensors=scale_255)
    case("q_excluded", config=lambda c: c["exclude"].append("model.layers.0.self_attn.q_proj"))
    case("lm_head", tensors=lm_head)
    case("output_tensors", config=lambda c: c["global_quant_config"].update(output_tensors=activations))
    case("input_tensors", config=lambda c: c["global_quant_config"].update(input_tensors=activations))
    case("short_scale", tensors=short_scale)
    case("other_size", tensors=other_size)
    case("truncated", file=lambda f: os.truncate(f, f.stat().st_size - 1000))
    case("good")
    names = [path.name for path in sorted(folder.iterdir(), key=lambda path: path.name == "good")]
    llm = {"enforce_eager": True, "max_model_len": 64}
    attempts = [{**llm, "model": str(folder / name)} for name in names]
    return dict(zip(names, run_engine(folder, {"attempts": attempts}), strict=True))


@pytest.mark.parametrize(
    "case, words",
    [
        ("scale_255", [LAYER, "255", "NaN", "export"]),
        ("q_excluded", ["model.layers.0.self_attn.qkv_proj", "same scheme"]),
        ("lm_head", ["lm_head is quantized", "quantize again with lm_head excluded"]),
        ("output_tensors", ["output_tensors", "not supported"]),
        ("input_tensors", ["VllmExtCpuMxFp4LinearKernel", "weight-only layers (W4A16) only", "mxfp4"]),
        ("short_scale", [f"{LAYER}.weight_scale", "[128, 7]", "[128, 8]", "export the checkpoint again"]),
        ("other_size", [f"{LAYER}: a tensor [128, 64]", "[128, 128]", "again"]),
        ("truncated", ["model.safetensors is truncated", "again"]),
    ],
)
def test_a_checkpoint_that_cannot_be_served(errors, case, words):
    for word in words:
        assert word.lower() in errors[case].lower(), errors[case]


def test_a_good_one_is_served_after_all_the_bad_ones(errors):
    assert errors["good"] == "served"


def test_an_input_size_that_does_not_split(run, tmp_path):
    """1056 is 33 groups of 32: fine on one rank, not on two."""
    model = packed_llama(tmp_path / "model", DEMO, intermediate=1056, **SIZES)
    cores = sorted(os.sched_getaffinity(0))
    env = {**ENGINE_ENV, "VLLM_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}
    done = run(*API_SERVER, str(model), "--max-model-len", "64", "--enforce-eager", "-tp", "2", env=env)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    for word in (
        "model.layers.0.mlp.down_proj",
        "528",
        "divisible by the OCP MX group size 32",
        "tensor-parallel size",
    ):
        assert word in output, output[-4000:]
