# `make demo`: set up and run the main job. `make test`: set up, lint, types, tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2
# torch's own threads and pytest's workers share the cores
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg

.PHONY: demo test test-all lint bench docs setup clean

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
	$(TEST_ENV) $(BIN)/python -m pytest -m "not slow" -n $(PYTEST_WORKERS)

test-all: lint
	$(TEST_ENV) $(BIN)/python -m pytest -n $(PYTEST_WORKERS)

bench: setup
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.sde
	$(BIN)/python -m benchmarks.focal
	$(BIN)/python -m benchmarks.images

docs: setup
	$(BIN)/pdoc --math --docformat google -o docs/_build trivgeo trivgeo.groups trivgeo.actions trivgeo.sde trivgeo.inversion trivgeo.symmetry trivgeo.geoopt

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
