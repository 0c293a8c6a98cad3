# Every target makes its own virtual environment; nothing but Python >= 3.11, git and the package registry is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint benchmarks clean

demo: $(STAMP)
	$(BIN)/python examples/certified_noise.py

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
	for name in certificates sampling many_bins agreement optimize noise report; do $(BIN)/python benchmarks/$$name.py || exit 1; done

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[test,lint]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
