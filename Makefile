# Every target makes its own virtual environment; nothing but Python >= 3.11, git and the package registry is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
DEMO := build/demo

.PHONY: demo test test-all lint benchmarks clean

# The main job on its embedded example: a plan for 20 epochs of 100 batches of 500, and its page.
demo: $(BASE)
	rm -rf $(DEMO)
	$(BIN)/galton plan --examples 50000 --batch-size 500 --epochs 20 --epsilon 2 --delta 1e-5 -o $(DEMO)/plan
	$(BIN)/galton report $(DEMO)/plan -o $(DEMO)/report.html

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: $(STAMP)
	$(BIN)/pip install --quiet -e ".[benchmarks]"
	for name in certificates sampling many_bins agreement optimize noise cifar report; do $(BIN)/python benchmarks/$$name.py || exit 1; done

$(BASE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[plot]"
	touch $(BASE)

# torch is pinned: a CPU build of it is enough, and other versions bring gigabytes for GPUs.
$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e ".[test,lint]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
