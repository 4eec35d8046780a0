# SPDX-License-Identifier: Apache-2.0
"""The source through transformers: its outline without weights, the model itself, its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ext.quantize.errors import InputError, QuantizeError
from vllm_ext.quantize.layers import Linear
from vllm_ext.quantize.progress import Progress
from vllm_ext.quantize.source import Source

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

_LOOPS = {
    "Converting and de-quantizing GGUF tensors...": (None, None),
    "Loading weights": (None, None),
}
"""transformers' own bars while loading, by description."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Outline:
    """A model's layers and sizes, known before its weights are read.

    *head* is the name of the output layer, *others* the modules besides linear layers and embeddings that hold
    a matrix (routers, fused experts, convolutions); *expert_parameters* counts the numbers in fused experts.
    """

    architecture: str
    linears: list[Linear]
    head: str | None
    others: list[str]
    parameters: int
    expert_parameters: int


def outline(source: Source) -> Outline:
    """Build the model on torch's meta device, which allocates nothing, and list its layers.

    Raises InputError when transformers knows no causal language model for the source.
    """
    import torch
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(source.folder, trust_remote_code=False, **source.load_args)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
        model.tie_weights()
    except Exception as error:  # transformers raises many kinds for a config that it cannot use
        raise InputError(_unusable(source, error)) from error
    head = model.get_output_embeddings()
    linears: list[Linear] = []
    others: list[str] = []
    head_name, experts = None, 0
    for name, module in model.named_modules():
        if module is head:
            head_name = name
        if type(module) is nn.Linear:
            linears.append(Linear(name, module.out_features, module.in_features))
        elif not isinstance(module, nn.Embedding) and any(p.dim() > 1 for p in module.parameters(recurse=False)):
            others.append(name)
            if name.rpartition(".")[2] == "experts":
                experts += sum(parameter.numel() for parameter in module.parameters(recurse=False))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Outline(type(model).__name__, linears, head_name, others, parameters, experts)


def load(source: Source, progress: Progress) -> PreTrainedModel:
    """The model in bf16 on the CPU. Raises QuantizeError when its files are damaged."""
    import torch
    from transformers import AutoModelForCausalLM

    arguments: dict[str, Any] = {**source.load_args, "trust_remote_code": False}
    if source.kind == "gguf":
        from transformers import GgufConfig

        # Without it transformers 5 leaves the GGUF blocks packed, which amd-quark cannot read.
        arguments["quantization_config"] = GgufConfig(dequantize=True)
    try:
        with progress.adopt(("transformers.",), _LOOPS):
            model, report = AutoModelForCausalLM.from_pretrained(
                source.folder, dtype=torch.bfloat16, output_loading_info=True, **arguments
            )
    except Exception as error:
        raise QuantizeError(
            f"SRC {source.given} could not be loaded ({_first_line(error)}): its weight files may be incomplete; "
            "download it again."
        ) from error
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise QuantizeError(
            f"SRC {source.given} lacks {len(missing)} of the model's tensors (first: {missing[0]}), which would be "
            "random numbers: download it again."
        )
    model.eval()
    if source.kind == "gguf":
        if getattr(model.config, "quantization_config", None) is not None:
            del model.config.quantization_config
        # amd-quark copies every file of this folder along; a GGUF's folder is no model folder.
        model.config._name_or_path = ""
    return model


def check_finite(model: PreTrainedModel, names: list[str]) -> None:
    """Raise InputError naming the first layer whose weight holds NaN or infinity."""
    import torch

    for name in names:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        if not bool(torch.isfinite(weight).all()):
            raise InputError(f"{name}.weight of the source holds NaN or infinity: give an undamaged model.")


def save_tokenizer(source: Source, out: Path) -> bool:
    """Put a GGUF's tokenizer, rebuilt, into *out*; says whether *out* has one.

    A folder's tokenizer files have been copied byte for byte by then.
    """
    if source.kind == "gguf":
        from transformers import AutoTokenizer

        try:
            AutoTokenizer.from_pretrained(source.folder, **source.load_args).save_pretrained(out)
        except Exception as error:
            raise QuantizeError(
                f"The tokenizer inside {source.given} could not be rebuilt ({_first_line(error)}): "
                "quantize the original Hugging Face folder instead."
            ) from error
    return any((out / name).is_file() for name in _TOKENIZER_FILES)


def _unusable(source: Source, error: Exception) -> str:
    reason = _first_line(error)
    if "trust_remote_code" in str(error):
        return (
            f"SRC {source.given} needs Python code of its own, which this command does not run: "
            "give a model that transformers knows."
        )
    return f"SRC {source.given} is no causal language model that transformers can build ({reason}): give another one."


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".:") if text else type(error).__name__
