# SPDX-License-Identifier: Apache-2.0
"""Which layers are quantized, and what is said when the choice cannot be served."""

from __future__ import annotations

import pytest

from vllm_ext.quantize.errors import InputError
from vllm_ext.quantize.layers import Linear, choose

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def model(layers: int = 2, width: int = 64) -> list[Linear]:
    found = []
    for number in range(layers):
        found += [Linear(f"model.layers.{number}.self_attn.{leaf}", width, width) for leaf in ATTENTION]
        found += [Linear(f"model.layers.{number}.mlp.{leaf}", width, width) for leaf in MLP]
    return [*found, Linear("lm_head", 256, width)]


def test_the_head_stays_bf16_whatever_the_patterns() -> None:
    assert choose(model(), "lm_head", ["lm_head"]).kept == ["lm_head"]
    choice = choose(model(), "lm_head", ["*.down_proj"])
    assert choice.kept == ["model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head"]
    assert len(choice.quantized) == 12


def test_a_head_of_another_name_stays_bf16() -> None:
    linears = [Linear("gpt.layers.0.attention.dense", 64, 64), Linear("embed_out", 256, 64)]
    assert choose(linears, "embed_out", ["lm_head"]).kept == ["embed_out"]


def test_routers_stay_bf16() -> None:
    linears = [
        *model(1),
        Linear("model.layers.0.mlp.gate", 4, 64),
        Linear("model.layers.0.mlp.shared_expert_gate", 1, 64),
    ]
    assert choose(linears, "lm_head", ["lm_head"]).kept == [
        "lm_head",
        "model.layers.0.mlp.gate",
        "model.layers.0.mlp.shared_expert_gate",
    ]


@pytest.mark.parametrize(
    ("pattern", "nearest"),
    [("q_proj", "'*.q_proj'"), ("*.dwon_proj", "'*.down_proj'"), ("model.layer.0.mlp.*", "model.layers.0.mlp")],
)
def test_a_pattern_that_matches_nothing_is_named_with_its_nearest(pattern: str, nearest: str) -> None:
    with pytest.raises(InputError) as caught:
        choose(model(), "lm_head", [pattern])
    assert f"--exclude {pattern!r} matches none of the model's 15 linear layers" in str(caught.value)
    assert nearest in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "rest", "remedy"),
    [
        (
            "*.q_proj",
            "model.layers.0.self_attn.k_proj, model.layers.0.self_attn.v_proj",
            "'*.q_proj' '*.k_proj' '*.v_proj'",
        ),
        ("*.up_proj", "model.layers.0.mlp.gate_proj", "'*.gate_proj' '*.up_proj'"),
        ("model.layers.1.self_attn.[qk]_proj", "model.layers.1.self_attn.v_proj", "'*.v_proj'"),
    ],
)
def test_half_a_fused_layer_is_refused(pattern: str, rest: str, remedy: str) -> None:
    with pytest.raises(InputError) as caught:
        choose(model(), "lm_head", [pattern])
    assert f"but not {rest}, and vLLM fuses them" in str(caught.value)
    assert remedy in str(caught.value)


def test_a_whole_fused_layer_may_be_excluded() -> None:
    choice = choose(model(1), "lm_head", ["*.[qkv]_proj"])
    assert [name.rpartition(".")[2] for name in choice.quantized] == ["o_proj", *MLP]


def test_mla_without_a_query_rank_has_nothing_fused_with_kv_a() -> None:
    linears = [
        Linear(f"model.layers.0.self_attn.{leaf}", 64, 64) for leaf in ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj")
    ]
    assert len(choose(linears, "lm_head", ["*.kv_a_proj_with_mqa"]).quantized) == 2
    linears.append(Linear("model.layers.0.self_attn.q_a_proj", 64, 64))
    with pytest.raises(InputError, match="vLLM fuses them"):
        choose(linears, "lm_head", ["*.kv_a_proj_with_mqa"])


def test_in_features_that_groups_do_not_divide_is_named() -> None:
    linears = [Linear("model.layers.0.mlp.down_proj", 64, 48), *model(1)]
    with pytest.raises(InputError) as caught:
        choose(linears, "lm_head", ["lm_head"])
    assert "model.layers.0.mlp.down_proj has in_features 48, not a multiple of 32 (1 such layers)" in str(caught.value)
    assert "--exclude '*.down_proj'" in str(caught.value)
    assert "model.layers.0.mlp.down_proj" not in choose(linears, "lm_head", ["*.down_proj"]).quantized


def test_nothing_left_to_quantize() -> None:
    with pytest.raises(InputError, match="leaves none of the model's 14 linear layers"):
        choose(model(), "lm_head", ["*"])
    with pytest.raises(InputError, match="no torch.nn.Linear layer"):
        choose([Linear("lm_head", 256, 64)], "lm_head", ["lm_head"])
