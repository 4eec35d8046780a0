# SPDX-License-Identifier: Apache-2.0
"""Runs one vLLM engine in this process as a JSON job says, for tests. Usage: python engine.py JOB.json

Job: {"llm": keyword arguments of vllm.LLM, "steps": [{"do": name, ...}, ...], "out": file for the list of results}.
With "attempts" in place of "llm" and "steps", every entry (a set of LLM arguments) is tried and its error recorded.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def score(llm: Any, prompts: list[list[int]]) -> list[list[float]]:
    """Log-probability of every token but the first, given those before it."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
    return [
        [at[token].logprob for token, at in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]
        for ids, output in zip(prompts, outputs, strict=True)
    ]


def following(llm: Any, prompts: list[list[int]], lora: str | None = None) -> list[dict[str, float]]:
    """{token: log-probability} of the twenty likeliest next tokens. (With LoRA, vLLM's CPU backend raises when it is
    asked for prompt log-probabilities, whatever the model.)"""
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    params = SamplingParams(max_tokens=1, temperature=0, logprobs=20)
    request = LoRARequest("adapter", 1, lora) if lora else None
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    outputs = llm.generate(inputs, params, use_tqdm=False, lora_request=request)
    return [{str(token): at.logprob for token, at in output.outputs[0].logprobs[0].items()} for output in outputs]


def logits(llm: Any, prompt: list[int], file: str) -> str:
    """Save the raw logits float32 [tokens - 1, vocabulary]; the engine was made with logprobs_mode="raw_logits"."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=-1)
    output = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)[0]
    rows = [[at[token].logprob for token in range(len(at))] for at in output.prompt_logprobs[1:]]
    np.save(file, np.array(rows, dtype=np.float32))
    return file


def generate(llm: Any, prompts: list[str], max_tokens: int = 16) -> list[str]:
    from vllm import SamplingParams

    outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens, temperature=0), use_tqdm=False)
    return [output.outputs[0].text for output in outputs]


def reload(llm: Any, folder: str) -> None:
    """Load the weights in *folder* into the layers that are there."""
    llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})


def memory(llm: Any) -> int:
    """Anonymous resident memory of this process in bytes (file pages of the checkpoint do not count)."""
    gc.collect()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def linear_weights(llm: Any) -> dict[str, Any]:
    """Bytes and dtypes of the parameters of all linear layers, and how many layers are packed."""
    from vllm.model_executor.layers.linear import LinearBase

    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    layers = [module for module in model.modules() if isinstance(module, LinearBase)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    return {
        "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        "packed": sum(str(layer.weight.dtype) == "torch.uint8" for layer in layers),
        "layers": len(layers),
    }


def attempt(arguments: dict[str, Any]) -> str:
    """The error of making an engine, or "served"."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    try:
        LLM(**arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        cleanup_dist_env_and_memory()
    return "served"


STEPS = {step.__name__: step for step in (score, following, logits, generate, reload, memory, linear_weights)}


def main(job: dict[str, Any]) -> list[Any]:
    if "attempts" in job:
        return [attempt(arguments) for arguments in job["attempts"]]
    from vllm import LLM

    llm = LLM(**job["llm"])
    return [STEPS[step.pop("do")](llm, **step) for step in job["steps"]]


if __name__ == "__main__":
    work = json.loads(Path(sys.argv[1]).read_text())
    Path(work["out"]).write_text(json.dumps(main(work)))
