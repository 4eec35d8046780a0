# SPDX-License-Identifier: Apache-2.0
"""Random Hugging Face models for tests: real files, seeded weights, made in seconds and without a network.

Each function writes config, bf16 weights and a tokenizer into the folder *path* and returns it. *tokenizer* is a
folder to copy one from (the demo's, say); without it a small word tokenizer is made.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
_WORDS = ["the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on"]
_TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"


def llama(
    path: Path,
    hidden: int = 512,
    heads: int = 8,
    kv_heads: int = 4,
    layers: int = 2,
    intermediate: int = 1024,
    vocab: int | None = None,
    tokenizer: Path | None = None,
    tie: bool = True,
    seed: int = 0,
) -> Path:
    """A Llama; head size is hidden / heads. Untied models have an output layer of their own."""
    return _write(
        path, tokenizer, vocab, seed, "llama",
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, num_hidden_layers=layers,
        intermediate_size=intermediate, tie_word_embeddings=tie, rope_parameters=_rope(50000.0),
    )  # fmt: skip


def big_llama(path: Path, tokenizer: Path | None = None, vocab: int | None = None, seed: int = 0) -> Path:
    """A Llama whose linear layers are 1.34 GB in bf16 (11 layers of 121.6 MB)."""
    return llama(
        path,
        hidden=2048,
        heads=16,
        kv_heads=4,
        layers=11,
        intermediate=8192,
        vocab=vocab,
        tokenizer=tokenizer,
        seed=seed,
    )


def deepseek_mla(
    path: Path,
    hidden: int = 256,
    heads: int = 4,
    layers: int = 2,
    q_lora_rank: int | None = 128,
    model_type: str = "deepseek_v2",
    vocab: int | None = None,
    tokenizer: Path | None = None,
    seed: int = 0,
) -> Path:
    """A dense DeepSeek with multi-head latent attention: latent 512 + rotary 64, the one size that vLLM's CPU
    backend decodes. Every linear layer's in_features is a multiple of 32, kv_b_proj's too."""
    return _write(
        path, tokenizer, vocab, seed, model_type,
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=heads, num_hidden_layers=layers,
        intermediate_size=2 * hidden, moe_intermediate_size=hidden, q_lora_rank=q_lora_rank, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64, first_k_dense_replace=layers,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
        tie_word_embeddings=False, rope_parameters=_rope(10000.0),
    )  # fmt: skip


def qwen3_moe(
    path: Path, hidden: int = 128, experts: int = 4, layers: int = 2, tokenizer: Path | None = None, seed: int = 0
) -> Path:
    """A mixture of experts, whose experts transformers 5 holds fused and whose router is no linear layer."""
    return _write(
        path, tokenizer, None, seed, "qwen3_moe",
        hidden_size=hidden, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_hidden_layers=layers,
        intermediate_size=2 * hidden, moe_intermediate_size=hidden, num_experts=experts, num_experts_per_tok=2,
        decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=False, rope_parameters=_rope(10000.0),
    )  # fmt: skip


def gpt2(path: Path, tokenizer: Path | None = None, seed: int = 0) -> Path:
    """A GPT-2, whose layers are transformers' Conv1D and not linear ones."""
    return _write(path, tokenizer, None, seed, "gpt2", n_embd=64, n_layer=1, n_head=2)


def save(tensors: dict[str, torch.Tensor], path: Path, without: str | None = None) -> None:
    """Write *tensors*, except the one named *without*, as one safetensors file."""
    kept = {name: tensor for name, tensor in tensors.items() if name != without}
    save_file(kept, path, metadata={"format": "pt"})


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _write(path: Path, tokenizer: Path | None, vocab: int | None, seed: int, model_type: str, **sizes: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    words = _tokenizer(path, tokenizer)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=vocab or words,
        max_position_embeddings=2048,
        # Wide enough that attention and logits are far from uniform, or comparing outputs would show nothing.
        initializer_range=0.06,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        **sizes,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(path)
    return path


def _tokenizer(path: Path, source: Path | None) -> int:
    """Put a tokenizer into *path*; returns its number of tokens, rounded up to a multiple of 64."""
    if source is not None:
        for name in _TOKENIZER_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, path / name)
        size = len(PreTrainedTokenizerFast.from_pretrained(path))
    else:
        words = ["<unk>", "<s>", "</s>", *_WORDS]
        words += [f"w{number}" for number in range(256 - len(words))]
        core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
        fast = PreTrainedTokenizerFast(
            tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
        )
        fast.chat_template = _TEMPLATE
        fast.save_pretrained(path)
        size = len(fast)
    return -(-size // 64) * 64


_KINDS: dict[str, Callable[..., Path]] = {
    "llama": llama,
    "big_llama": big_llama,
    "deepseek_mla": deepseek_mla,
    "qwen3_moe": qwen3_moe,
    "gpt2": gpt2,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a random model for tests.")
    parser.add_argument("kind", choices=_KINDS)
    parser.add_argument("path", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder to copy a tokenizer from")
    arguments = parser.parse_args()
    _KINDS[arguments.kind](arguments.path, tokenizer=arguments.tokenizer)
