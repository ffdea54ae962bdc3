# Everything a fresh machine needs: `make test` sets up a virtual environment and runs what a change must pass.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup lint test test-all demo clean

setup: $(READY)

# torch first and pinned: any other requirement on it would pull gigabytes of CUDA libraries.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,rivals]'
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long"

test-all: lint
	$(BIN)/python -m pytest -n 2 --dist loadgroup

# Strategies side by side on 100 Mb/s, in a few minutes; virtual where network namespaces are not allowed.
demo: $(READY)
	$(BIN)/python bench/demo.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
