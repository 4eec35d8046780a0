# SPDX-License-Identifier: Apache-2.0
"""Random files beside the demo checkpoint: a packed Llama of any size without amd-quark, and a LoRA adapter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file


def packed_llama(
    path: Path, demo: Path, hidden: int, intermediate: int, heads: int, kv_heads: int, layers: int, seed: int = 0
) -> Path:
    """Write a Quark MXFP4 Llama of random codes, with config and tokenizer after *demo*. Returns *path*."""
    shutil.copytree(demo, path, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((path / "config.json").read_text())
    config |= {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "num_hidden_layers": layers,
    }
    (path / "config.json").write_text(json.dumps(config))
    torch.manual_seed(seed)
    kv = kv_heads * hidden // heads
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden)}
    shapes |= {"self_attn.o_proj": (hidden, hidden), "mlp.down_proj": (hidden, intermediate)}
    shapes |= {"mlp.gate_proj": (intermediate, hidden), "mlp.up_proj": (intermediate, hidden)}
    norms = [torch.ones(hidden, dtype=torch.bfloat16) for _ in range(2 * layers + 1)]
    tensors = {"model.norm.weight": norms.pop()}
    tensors["model.embed_tokens.weight"] = torch.randn(config["vocab_size"], hidden).to(torch.bfloat16)
    for layer in range(layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = norms.pop()
        for name, (n, k) in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
            scale = torch.randint(117, 122, (n, -(-k // 32)), dtype=torch.uint8)
            tensors[f"model.layers.{layer}.{name}.weight_scale"] = scale
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def lora_adapter(path: Path, model: Path, rank: int = 8, seed: int = 0) -> Path:
    """Write an adapter in PEFT's format for q_proj, o_proj and down_proj of the Llama in *model*. Returns *path*."""
    config = json.loads((model / "config.json").read_text())
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden)}
    shapes |= {"mlp.down_proj": (hidden, intermediate)}
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (n, k) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, k, dtype=torch.bfloat16) * k**-0.5
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(n, rank, dtype=torch.bfloat16) * 0.2
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    adapter = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": [name.split(".")[1] for name in shapes],
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(adapter))
    return path
