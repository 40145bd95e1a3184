# `make demo`: set up and run the main job. `make test`: set up, lint, types, tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2
RIGHT_TYPES := not BadInput and not Refus and not refuse and not compile and not bad and not wrong and not none
# torch's own threads and pytest's workers share the cores
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: demo test test-all test-shapes lint bench docs tables release-check setup clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[tasks,test,lint,docs]"
	touch $@

demo: setup
	$(BIN)/python -m tasks test --config tasks/configs/heat/tied_mixed.yaml

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(TEST_ENV) $(BIN)/python -m pytest -m "not slow" -n $(PYTEST_WORKERS) --dist worksteal

test-all: lint test-shapes
	$(TEST_ENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal

# the fast tests with every signature of the library checked at run time, but for those that give wrong types on purpose
test-shapes: setup
	$(TEST_ENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist worksteal -m "not slow" -k "$(RIGHT_TYPES)" \
		--jaxtyping-packages=trivgeo,beartype.beartype tests/actions tests/inversion tests/sde

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.sde
	$(BIN)/python -m benchmarks.focal
	$(BIN)/python -m benchmarks.images
	$(BIN)/python -m benchmarks.devices

# the site, with the code of every page run; it needs no network
docs: setup
	$(TEST_ENV) $(BIN)/python -m mkdocs build --strict

# the tables and pictures of the pages, which are kept beside them
tables: setup
	$(TEST_ENV) $(BIN)/python -m docs.tables
	$(TEST_ENV) $(BIN)/python -m docs.figures

# what would be published: built, looked at, and tried
release-check: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build twine
	rm -rf build/release build/lib
	$(BIN)/python -m build --outdir build/release .
	$(BIN)/python -m twine check --strict build/release/*
	$(TEST_ENV) $(BIN)/python -m tests.release build/release

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
