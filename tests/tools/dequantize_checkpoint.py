# SPDX-License-Identifier: Apache-2.0
"""Write the bf16 checkpoint that a Quark MXFP4 checkpoint stands for, value by value.

Every fp4 value times its scale is exact in bf16 (scale bytes 2 to 252), so logits of the two may differ only by
the rounding of intermediate results. Usage: python dequantize_checkpoint.py QUANTIZED OUT
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vllm_ext.quant.mxfp4.reference import dequantize


def dequantize_checkpoint(quantized: Path, out: Path) -> Path:
    """Write *out*, a plain bf16 folder with the names, config and tokenizer of the folder *quantized*.

    A sharded checkpoint stays sharded; ValueError when *quantized* holds no packed layer.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(quantized.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
    config = json.loads((out / "config.json").read_text())
    del config["quantization_config"]
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    shards = sorted(quantized.glob("*.safetensors"))
    where: dict[str, Path] = {}
    for shard in shards:
        with safe_open(shard, framework="pt") as file:
            where.update(dict.fromkeys(file.keys(), shard))
    if not any(name.endswith(".weight_scale") for name in where):
        raise ValueError(f"{quantized} holds no packed layer")
    index: dict[str, str] = {}
    for shard in shards:
        tensors = {}
        with safe_open(shard, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                if name.endswith(".weight_scale"):
                    continue
                tensor = file.get_tensor(name)
                scale_name = f"{name}_scale"
                if scale_name in where:
                    # A shard may end between a weight and its scale.
                    with safe_open(where[scale_name], framework="pt") as other:
                        tensor = dequantize(tensor, other.get_tensor(scale_name), torch.bfloat16)
                tensors[name] = tensor
        if tensors:
            save_file(tensors, out / shard.name, metadata={"format": "pt"})
            index.update(dict.fromkeys(tensors, shard.name))
    if len(shards) > 1:
        content = {"metadata": {}, "weight_map": index}
        (out / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("quantized", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    print(dequantize_checkpoint(arguments.quantized, arguments.out))
