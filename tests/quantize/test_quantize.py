# SPDX-License-Identifier: Apache-2.0
"""The real command, with the real amd-quark, on a model made on the spot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.quantize.conftest import Quantize
from tests.tools import make_tiny_models
from tests.tools.dequantize_checkpoint import dequantize_checkpoint
from vllm_ext.quant.mxfp4.reference import dequantize
from vllm_ext.quantize import quantize_checkpoint

LEAVES = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (96, 64),
    "mlp.up_proj": (96, 64),
    "mlp.down_proj": (64, 96),
}
LAYERS = {f"model.layers.{number}.{leaf}": size for number in range(2) for leaf, size in LEAVES.items()}

WEIGHT = {
    "dtype": "fp4",
    "qscheme": "per_group",
    "group_size": 32,
    "ch_axis": -1,
    "scale_format": "e8m0",
    "is_dynamic": False,
}


def mxfp4(weight: torch.Tensor) -> torch.Tensor:
    """bf16 [N, K] rounded to MXFP4 and back, float64: an implementation that shares nothing with amd-quark.

    The scale is the power of two that puts a group's largest magnitude, rounded at 1.75, into [4, 8).
    """
    groups = weight.double().unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - 1 + (mantissa * 2 >= 1.75).int()
    scale = torch.ldexp(torch.ones_like(largest), exponent - 2)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    distance = (groups.abs() / scale).unsqueeze(-1) - grid
    # Ties go to the even code: order codes so that of two equally near ones the even comes first.
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    nearest = order[distance.abs()[..., order].argmin(-1)]
    return (grid[nearest] * groups.sign() * scale).flatten(-2)


def test_tensors(llama: Path, quantized: Path) -> None:
    before, after = load_file(llama / "model.safetensors"), load_file(quantized / "model.safetensors")
    assert set(after) == set(before) | {f"{name}.weight_scale" for name in LAYERS}
    for name, (rows, columns) in LAYERS.items():
        weight, scale = after[f"{name}.weight"], after[f"{name}.weight_scale"]
        assert (weight.dtype, weight.shape) == (torch.uint8, (rows, columns // 2))
        assert (scale.dtype, scale.shape) == (torch.uint8, (rows, columns // 32))
        got = dequantize(weight, scale, torch.float64)
        assert torch.equal(got, mxfp4(before[f"{name}.weight"])), name
    for name in before:
        if name.removesuffix(".weight") not in LAYERS:
            assert after[name].dtype == torch.bfloat16 and torch.equal(after[name], before[name]), name


def test_config(llama: Path, quantized: Path) -> None:
    before = json.loads((llama / "config.json").read_text())
    after = json.loads((quantized / "config.json").read_text())
    quantization = after.pop("quantization_config")
    assert after == {**before, "dtype": "bfloat16", "torch_dtype": "bfloat16", "rope_theta": 50000.0}
    assert quantization["quant_method"] == "quark"
    assert quantization["exclude"] == ["lm_head"]
    assert quantization["export"]["weight_format"] == "real_quantized"
    layer = quantization["global_quant_config"]
    assert layer["input_tensors"] is None and layer["output_tensors"] is None and layer["bias"] is None
    assert WEIGHT.items() <= layer["weight"].items()
    assert quantization["layer_quant_config"] == {} and quantization["kv_cache_quant_config"] == {}


def test_what_lies_beside_the_weights_is_carried_along(llama: Path, quantized: Path) -> None:
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE"):
        assert (quantized / name).read_bytes() == (llama / name).read_bytes(), name
    tokenizer = json.loads((quantized / "tokenizer_config.json").read_text())
    assert tokenizer["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_files_are_readable_and_nothing_else_is_left(quantized: Path) -> None:
    assert list(quantized.parent.iterdir()) == [quantized]
    assert {path.stat().st_mode & 0o777 for path in quantized.iterdir()} == {0o644}


def test_the_dequantized_checkpoint_loads_with_exactly_those_values(quantized: Path, tmp_path: Path) -> None:
    plain = dequantize_checkpoint(quantized, tmp_path / "plain")
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16)
    packed = load_file(quantized / "model.safetensors")
    for name in LAYERS:
        exact = dequantize(packed[f"{name}.weight"], packed[f"{name}.weight_scale"], torch.float64)
        assert torch.equal(model.get_submodule(name).weight.double(), exact), name
    assert (plain / "tokenizer.json").read_bytes() == (quantized / "tokenizer.json").read_bytes()


def test_the_report_and_what_is_printed(
    quantize: Quantize, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out put"
    assert quantize(llama, out, "--exclude", "*.down_proj") == 0
    printed = capsys.readouterr()
    assert "LlamaForCausalLM: 12 linear layers quantized to MXFP4" in printed.out
    assert "model.layers.0.mlp.down_proj, model.layers.1.mlp.down_proj, lm_head" in printed.out
    assert f"serve it: vllm serve '{out}'" in printed.out
    assert "[8/8]" in printed.err
    assert "QUARK" not in printed.err and "it/s" not in printed.err
    exclude = json.loads((out / "config.json").read_text())["quantization_config"]["exclude"]
    assert exclude == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head"]
    assert load_file(out / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16

    # A second run needs --force, then replaces the first one's output whole.
    assert quantize(llama, out) == 2
    assert f"error: OUT {out} already exists" in capsys.readouterr().err
    report = quantize_checkpoint(str(llama), out, force=True)
    assert (report.quantized_layers, report.quantized_parameters) == (14, sum(n * k for n, k in LAYERS.values()))
    assert report.output_bytes == (out / "model.safetensors").stat().st_size
    assert report.linear_packed_bytes / report.linear_bf16_bytes == 17 / 64
    assert load_file(out / "model.safetensors")["model.layers.0.mlp.down_proj.weight"].dtype == torch.uint8
    assert list(tmp_path.iterdir()) == [out]


def test_a_mixture_of_experts_keeps_its_experts_under_their_own_names(tmp_path: Path) -> None:
    source = make_tiny_models.qwen3_moe(tmp_path / "moe")
    report = quantize_checkpoint(str(source), tmp_path / "out")
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert {name for name in after if not name.endswith("_scale")} == set(before)
    expert = "model.layers.1.mlp.experts.3.down_proj.weight"
    assert torch.equal(after[expert], before[expert])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    modules = [f"model.layers.{number}.mlp.{name}" for number in range(2) for name in ("experts", "gate")]
    assert config["quantization_config"]["exclude"] == ["lm_head", *modules]
    assert report.quantized_layers == 8
    assert report.warnings == [
        "0.4 million parameters are fused experts and stay bf16: amd-quark quantizes linear layers only."
    ]


def test_mla_is_quantized_with_its_kv_b_proj(tmp_path: Path) -> None:
    source = make_tiny_models.deepseek_mla(tmp_path / "mla")
    report = quantize_checkpoint(str(source), tmp_path / "out")
    after = load_file(tmp_path / "out" / "model.safetensors")
    assert after["model.layers.0.self_attn.kv_b_proj.weight"].shape == (4 * (64 + 64), 512 // 2)
    assert report.quantized_layers == 2 * 8
    assert report.warnings == []


def refused(
    quantize: Quantize, capsys: pytest.CaptureFixture[str], out: Path, *arguments: str | Path
) -> tuple[int, str]:
    """Exit code and message of a run that must fail and leave nothing at or beside *out*."""
    out.parent.mkdir(exist_ok=True)
    code = quantize(*arguments[:1], out, *arguments[1:])
    assert list(out.parent.iterdir()) == []
    error = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert len(error) == 1 and error[0].startswith("error: "), error
    return code, error[0]


def test_bad_patterns(quantize: Quantize, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "place" / "out"
    code, error = refused(quantize, capsys, out, llama, "--exclude", "*.q_proj")
    assert code == 2 and "vLLM fuses them into one layer" in error
    code, error = refused(quantize, capsys, out, llama, "--exclude", "lm_head", "qproj")
    assert code == 2 and "--exclude 'qproj' matches none of the model's 15 linear layers" in error


def test_sizes_that_do_not_fit_the_format(
    quantize: Quantize, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_tiny_models.llama(tmp_path / "odd", hidden=64, heads=4, kv_heads=2, intermediate=80)
    code, error = refused(quantize, capsys, tmp_path / "place" / "out", source)
    assert code == 2 and "model.layers.0.mlp.down_proj has in_features 80, not a multiple of 32" in error


def test_a_model_without_linear_layers(quantize: Quantize, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_tiny_models.gpt2(tmp_path / "gpt2")
    code, error = refused(quantize, capsys, tmp_path / "place" / "out", source)
    assert code == 2 and "no torch.nn.Linear layer that amd-quark could quantize" in error


def test_what_is_no_language_model(
    quantize: Quantize, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shutil.copytree(llama, tmp_path / "source")
    out = tmp_path / "place" / "out"
    (source / "config.json").write_text('{"model_type": "vit"}')
    code, error = refused(quantize, capsys, out, source)
    assert code == 2 and "is no causal language model that transformers can build" in error
    (source / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}')
    (source / "own.py").write_text("raise SystemExit('foreign code was run')")
    code, error = refused(quantize, capsys, out, source)
    assert code == 2 and "needs Python code of its own" in error


def test_damaged_weights(quantize: Quantize, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(llama, tmp_path / "source")
    out, weights = tmp_path / "place" / "out", source / "model.safetensors"
    whole = load_file(weights)

    weights.write_bytes(weights.read_bytes()[:-1000])
    code, error = refused(quantize, capsys, out, source)
    assert code == 1 and f"SRC {source} could not be loaded" in error

    name = "model.layers.1.mlp.up_proj.weight"
    make_tiny_models.save(whole, weights, without=name)
    code, error = refused(quantize, capsys, out, source)
    assert code == 1 and f"lacks 1 of the model's tensors (first: {name})" in error

    whole[name][3, 5] = float("nan")
    make_tiny_models.save(whole, weights)
    code, error = refused(quantize, capsys, out, source)
    assert code == 2 and f"{name} of the source holds NaN or infinity" in error
