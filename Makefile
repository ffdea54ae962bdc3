# Everything a fresh machine needs: `make test` sets up a virtual environment and runs what a change must pass.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FRAMEWORKS := $(VENV)/.frameworks
FLOWER := $(VENV)-flower/.ready

# Bytecode is kept, beside the environment, also where a shell says that none be written: tests start a hundred processes.
export PYTHONDONTWRITEBYTECODE =
export PYTHONPYCACHEPREFIX = $(abspath $(VENV))/pycache

.PHONY: setup lint collected test test-long test-frameworks test-flower test-all demo clean

setup: $(READY)

# torch first and pinned: any other requirement on it would pull gigabytes of CUDA libraries. Python compiles what it
# imports, which is a small part of what is installed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev,rivals]'
	touch $(READY)

# Lightning, Transformers and their like, for the tests of the adapters; torch is there already and stays.
$(FRAMEWORKS): $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[frameworks,cluster]'
	touch $(FRAMEWORKS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# All processes of a suite compile all tests, each for itself: one does it for them, beside the checks of style and types.
collected: $(READY)
	$(BIN)/python -m pytest --collect-only -qq >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }

# What a change must pass: every word on the virtual engine, the property suite, one test on processes per mechanism.
# Two cores have three processes, since one of them has the tests on processes, which wait for each other.
test: $(READY)
	$(MAKE) --jobs=2 --output-sync lint collected
	$(BIN)/python -m pytest -n 3 --dist loadgroup -m "not long"

# What is left out there: trainings to a loss, the same on more seeds, draws and sentences, faults of whole runs.
test-long: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m long --ignore tests/integrations

# The adapters inside Lightning, Transformers, Accelerate, Ray Train and torchft, which are installed for it.
test-frameworks: $(FRAMEWORKS)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m long tests/integrations

# Flower has an environment of its own, which sees the other one's packages behind what Flower pins.
$(FLOWER): $(READY)
	$(PYTHON) -m venv $(VENV)-flower
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		> $$($(VENV)-flower/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/shared.pth
	$(VENV)-flower/bin/pip install --quiet 'flwr>=1.41,<1.43'
	touch $(FLOWER)

test-flower: $(FLOWER)
	$(VENV)-flower/bin/python -m pytest $(wildcard tests/integrations/test_flower*.py)

test-all: test test-long test-frameworks test-flower

# Strategies side by side on 100 Mb/s, in a few minutes; virtual where network namespaces are not allowed.
demo: $(READY)
	$(BIN)/python bench/demo.py

clean:
	rm -rf $(VENV) $(VENV)-flower build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
