# Every target makes its own virtual environment; nothing but Python >= 3.11, git and the package registry is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
DEMO := build/demo
# Versions of all packages, for an environment like everyone else's; LOCK= takes the newest that pyproject.toml allows.
LOCK ?= requirements.lock
INSTALL = $(BIN)/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK))
# The one place that says which torch: there is a CPU build of this version, and others bring gigabytes for GPUs.
TORCH := 2.13.0

.PHONY: demo test test-all lint docs package pythons lowest lock benchmarks clean

# The main job on its embedded example: a plan for 20 epochs of 100 batches of 500, and its page.
demo: $(BASE)
	rm -rf $(DEMO)
	$(BIN)/galton plan --examples 50000 --batch-size 500 --epochs 20 --epsilon 2 --delta 1e-5 -o $(DEMO)/plan
	$(BIN)/galton report $(DEMO)/plan -o $(DEMO)/report.html

# Half of the quick tests' time is compiling: without XLA's emitters of fusions it is half of that. `test-all` compiles as users do.
# Everything galton writes is synced to the disk: in memory that takes no time.
test: $(STAMP)
	scratch=$$(mktemp -d -p $$(test -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp}) galton-test-XXXXXX) && \
	trap 'rm -rf "$$scratch"' EXIT && \
	XLA_FLAGS="$(XLA_FLAGS) --xla_cpu_use_fusion_emitters=false" \
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" --basetemp "$$scratch/tests"

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmarks: $(STAMP)
	$(BIN)/pip install --quiet -e ".[benchmarks]"
	for name in certificates sampling many_bins independent agreement optimize noise cifar report; do $(BIN)/python benchmarks/$$name.py || exit 1; done

# The documentation in build/site; a warning is an error. Needs no network once its packages are there.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

$(VENV)/.docs: $(BASE)
	$(INSTALL) -e ".[docs]"
	touch $(VENV)/.docs

# Wheel and source distribution in dist/, checked: what PyPI shows renders, and the wheel installs and answers elsewhere.
package: $(BASE)
	rm -rf dist build/package
	$(INSTALL) build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/package
	build/package/bin/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK)) dist/*.whl
	build/package/bin/python -m pip check
	cd build && package/bin/galton --version

# Installs galton under each of these Pythons that is here and runs tests of its parts, JAX's training among them.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
SMOKE := $(addprefix tests/test_,strategies.py batching.py grammar.py noise.py typechecking.py workloads.py training_jax.py)
pythons:
	for python in $(PYTHONS); do \
	  $$python --version || { echo "$$python: not here"; continue; }; \
	  $$python -m venv --clear build/python && \
	  build/python/bin/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK)) -e ".[plot,jax,sign]" pytest hypothesis && \
	  build/python/bin/python -m pip check && \
	  build/python/bin/python -m pytest -m "not slow" $(SMOKE) || exit 1; \
	done

# The least versions that pyproject.toml allows, in an environment of their own: the same tests and those of the extras. Old packages
# warn about newer ones, so warnings are no errors here. Brings gigabytes for GPUs: the oldest torch has no other build on PyPI.
lowest: $(BASE)
	$(BIN)/python -m pip install --quiet uv
	$(PYTHON) -m venv --clear build/lowest
	$(BIN)/uv pip install --quiet --python build/lowest --resolution lowest-direct \
	  -e ".[plot,opacus,jax,cluster,sign,dp-accounting]" "pytest>=8" "hypothesis>=6"
	$(BIN)/uv pip check --python build/lowest
	build/lowest/bin/python -m pytest -W default -m "not slow" $(SMOKE) \
	  $(addprefix tests/test_,budget.py habits.py cluster.py training_torch.py training_opacus.py)

# Chooses the versions anew: the newest that go together, for all Python versions. Packages for GPUs are left out.
lock: $(BASE)
	$(BIN)/python -m pip install --quiet uv
	echo "torch==$(TORCH)" | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --no-emit-index-url --no-header --no-annotate --constraint - pyproject.toml --output-file build/requirements.lock
	grep -v -E "^(nvidia|cuda|triton)" build/requirements.lock > requirements.lock

$(BASE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) -e ".[plot]"
	touch $(BASE)

$(STAMP): $(BASE)
	$(INSTALL) torch==$(TORCH)
	$(INSTALL) -e ".[test,lint]"
	$(BIN)/python -m pip check
	touch $(STAMP)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
