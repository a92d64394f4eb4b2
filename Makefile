# Two commands for a fresh machine with Python 3.11-3.13 and make:
#   make demo    sets everything up and runs the main job
#   make test    sets everything up and passes the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/python -m uv
TEST_FLAGS ?=

.PHONY: help core xla view demo test test-docker engine test-all check bench locks clean
.DEFAULT_GOAL := help

help:   ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

core: $(VENV)/.core   ## .venv with hotfire and the developer's tools
xla: $(VENV)/.xla     ## the same with torch, torch_xla, transformers, datasets

$(BIN)/uv:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v < (3, 14) else "hotfire needs Python 3.11-3.13; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8,<1'

$(VENV)/.core: $(BIN)/uv .ci/locks/core.txt pyproject.toml
	@echo "hotfire: installing the core and the developer's tools (about 100 MB to download)"
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r .ci/locks/core.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

$(VENV)/.xla: $(VENV)/.core .ci/locks/xla.txt
	@echo "hotfire: installing torch 2.9, torch_xla 2.9, transformers and datasets."
	@echo "hotfire: PyPI's torch carries CUDA libraries: about 4 GB to download and 7 GB on disk, once per machine."
	$(UV) pip install --python $(BIN)/python --require-hashes -r .ci/locks/xla.txt
	@touch $@

view:   ## the import tree as type checkers see it
	@mkdir -p build/view/hotfire
	@for d in runtime containers entrypoints; do ln -sfn ../../../$$d build/view/hotfire/$$d; done

demo: xla   ## train a small BERT on two emulated NeuronCores, and use it
	$(BIN)/python examples/demo/demo.py

check: $(VENV)/.core view   ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: xla view   ## check, then every test that needs no container engine and fits 25 minutes on 2 cores
	$(MAKE) check
	$(BIN)/python -m pytest -m "not docker and not extended" $(TEST_FLAGS)

engine:   ## a Docker engine for the tests, where none runs, and their base image (Debian, root)
	.ci/engine start
	.ci/engine base
	.ci/engine check

test-docker: xla view engine   ## the tests that need a Docker engine: 5 minutes on 2 cores
	$(BIN)/python -m pytest -m "docker and not extended" $(TEST_FLAGS)

test-all: xla view   ## the rest as well: a Docker engine, the SDKs, 5 GB objects
	$(MAKE) check
	$(BIN)/python -m pytest $(TEST_FLAGS)

bench: xla   ## the ratios of docs/benchmarks.md, measured on this machine
	$(BIN)/python bench/run.py

locks: $(BIN)/uv   ## resolve the pinned requirement files anew
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make locks' --group dev pyproject.toml -o .ci/locks/core.txt
	$(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make locks' --extra xla --extra hf -c .ci/locks/core.txt pyproject.toml -o .ci/locks/xla.txt
	for image in gpu gpu-2.8 gpu-inductor neuron; do \
	    $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make locks' $$(ls .ci/locks/$$image.override 2>/dev/null | sed 's/^/--override /') .ci/locks/$$image.in -o .ci/locks/$$image.txt || exit 1; \
	done

clean:   ## remove what make made, .venv included
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
