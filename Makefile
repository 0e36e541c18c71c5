# Everything happens in .venv, made by the first command that needs it. All paths are relative, so that a checkout
# whose own path has spaces in it works. Stamp files let a second run start at once.

PYTHON ?= python3
VENV := .venv
RESULTS := benchmarks/results
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint requirements/lock.txt
SOURCES := pyproject.toml CMakeLists.txt requirements/lock.txt \
	$(shell find src csrc -type f ! -name '*.pyc' ! -name '*.so')

.DELETE_ON_ERROR:
.PHONY: help demo serve test test-arm test-emulated soak nightly lint format bench clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.package ## answer 32 conversations at once in a small KV budget and show what paging saved
	@$(BIN)/octavo demo

serve: $(VENV)/.package ## serve the default model on http://127.0.0.1:8000
	@$(BIN)/octavo serve

test: $(VENV)/.test ## run every test against the installed package
	@$(BIN)/octavo pull smollm2-135m >/dev/null
	@$(BIN)/octavo pull gemma3-270m >/dev/null
	@$(BIN)/python -m pytest

test-arm: $(VENV)/.build ## run the kernel tests on emulated Arm processors (on Debian)
	@tests/arm/run.sh

test-emulated: $(VENV)/.test ## run the kernel tests on AVX-512 and AMX in plain loops, whatever the processor
	@$(INSTALL) --no-build-isolation --no-deps --upgrade --target build/emulated/package \
		-C cmake.define.OCTAVO_EMULATED_ISA=ON -C build-dir=build/emulated/objects .
	@PYTHONPATH=build/emulated/package $(BIN)/python -m pytest -q tests/kernels -k emulated

soak: $(VENV)/.test ## 256 streams and leaving clients on a real engine for ten minutes
	@OCTAVO_SOAK_SECONDS=600 $(BIN)/python -m pytest -q tests/server/test_soak.py

nightly: $(VENV)/.clients ## clients made by others; requests made from the server's OpenAPI document for fifteen minutes
	@OCTAVO_SCHEMA_SECONDS=900 $(BIN)/python -m pytest -q tests/server/test_other_clients.py tests/server/test_schema.py

lint: $(VENV)/.lint ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@find csrc -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/.lint ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@find csrc -name '*.h' -o -name '*.cpp' | xargs $(BIN)/clang-format -i

# 64 requests at once would take the largest shape ten minutes in each format.
bench: $(VENV)/.package ## measure the engine on this machine, for about an hour, and renew the tables of the documents
	@$(BIN)/python benchmarks/machine.py --output $(RESULTS)/machine.json
	@for weights in auto bf16; do \
		$(BIN)/python benchmarks/offline.py --weights $$weights --output $(RESULTS)/offline-$$weights.json || exit 1; done
	@$(BIN)/python benchmarks/offline.py --kv-dtype int8 --workloads W1 D16x4096 --output $(RESULTS)/offline-auto-kv-int8.json
	@for shape in smollm2-135m qwen3-0.6b llama-3.2-1b; do for weights in bf16 int8 int4; do \
		if [ $$shape = llama-3.2-1b ]; then workloads="W1 P1024"; else workloads="W1 W64 P1024"; fi; \
		$(BIN)/python benchmarks/offline.py --shape $$shape --weights $$weights --workloads $$workloads --repeats 1 \
			--output $(RESULTS)/shape-$$shape-$$weights.json || exit 1; done; done
	@for shape in smollm2-135m llama-3.2-1b; do \
		$(BIN)/python benchmarks/kernels.py --model $$shape --rows 1,16,64,256 --output $(RESULTS)/kernels-$$shape.json || exit 1; done
	@for kv_dtype in bf16 int8; do \
		$(BIN)/python benchmarks/attention.py --models smollm2-135m qwen3-0.6b --kv-dtype $$kv_dtype \
			--output $(RESULTS)/attention-$$kv_dtype.json || exit 1; done
	@$(BIN)/python benchmarks/paging.py --output $(RESULTS)/paging.json
	@$(BIN)/python benchmarks/start.py --output $(RESULTS)/start.json
	@$(BIN)/python benchmarks/stalls.py --output $(RESULTS)/stalls.json
	@$(BIN)/python benchmarks/serving.py --output $(RESULTS)/serving.json
	@$(BIN)/python benchmarks/loop.py --output $(RESULTS)/loop.json
	@$(BIN)/python benchmarks/simulator.py --output $(RESULTS)/simulator.json
	@$(BIN)/python benchmarks/readme_table.py --write
	@$(BIN)/python docs/generate_guides.py

clean: ## remove what these commands made
	rm -rf $(VENV) build

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one: make PYTHON=python3.12")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The build tools live in .venv too: without pip's build isolation the compiled objects in build/ stay valid between installs.
$(VENV)/.build: $(VENV)/.python requirements/lock.txt
	@$(INSTALL) scikit-build-core nanobind cmake ninja
	@touch $@

$(VENV)/.package: $(VENV)/.build $(SOURCES)
	@echo "building and installing octavo"
	@$(INSTALL) --no-build-isolation .
	@touch $@

$(VENV)/.test: $(VENV)/.build $(SOURCES)
	@echo "building and installing octavo with what its tests need"
	@$(INSTALL) --no-build-isolation '.[test]'
	@touch $(VENV)/.package $@

$(VENV)/.clients: $(VENV)/.test
	@$(INSTALL) langchain-openai llm
	@touch $@

$(VENV)/.lint: $(VENV)/.python requirements/lock.txt
	@$(INSTALL) ruff mypy clang-format numpy
	@touch $@
