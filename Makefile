# `make demo`: set up and run the main job. `make test`: set up, lint, types, tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_WORKERS ?= 2
# torch's own threads and pytest's workers share the cores; compiled modules are kept for the processes that tests start
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 MPLBACKEND=Agg PYTHONDONTWRITEBYTECODE=
PYTEST := -m pytest -n $(PYTEST_WORKERS) --dist worksteal

# the oldest torch that pyproject.toml allows and the newest there is; `make test` runs the one of constraints.txt
TORCH_ENDS := 2.8.0 2.14.1
PINNED_TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH ?= $(firstword $(TORCH_ENDS))
TORCH_VENV := .venv-$(notdir $(PYTHON))-torch$(TORCH)
# versions of Python that pyproject.toml names; `make release-check` tries those that are found
PYTHON_VERSIONS := 3.11 3.12 3.13 3.14
BRIDGES_VENV := .venv-bridges
# group laws, derivatives, compiled groups, graphs of torch.compile and torch.export, time steps, sampled images and fields, inverters
TORCH_TESTS := tests/test_numerics.py tests/groups/test_group_laws.py tests/groups/test_autodiff.py \
	tests/groups/test_dense_oracles.py tests/groups/test_geometry.py tests/groups/test_standalone.py \
	tests/groups/test_compiled.py tests/actions tests/sde/solvers/test_solve.py tests/sde/solvers/test_processes.py \
	tests/sde/scores/test_gradient.py tests/sde/processes/test_kinetic.py tests/inversion/test_every_inverter.py \
	tests/inversion/energies/test_least_squares.py tests/inversion/learned/test_learned_inverter.py

AREAS := groups sde inversion symmetry tasks

.PHONY: demo test fast style types test-all test-torch test-bridges $(AREAS:%=test-%) lint bench docs tables release-check setup clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[tasks,test,lint,docs]"
	touch $@

demo: setup
	$(BIN)/python -m tasks test --config tasks/configs/heat/tied_mixed.yaml

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

fast: setup
	$(TEST_ENV) $(BIN)/python $(PYTEST) -m "not slow"

# types are checked beside the tests
test: style
	$(MAKE) --jobs=2 fast types

# the fast tests of one area, without lint
test-groups: TESTS := tests/groups tests/test_numerics.py
test-sde: TESTS := tests/sde tests/generative
test-inversion: TESTS := tests/inversion tests/registration tests/features tests/actions tests/bridges tests/devices tests/test_devices.py
test-symmetry: TESTS := tests/symmetry tests/pde tests/test_expressions.py
test-tasks: TESTS := tests/tasks
$(AREAS:%=test-%): setup
	$(TEST_ENV) $(BIN)/python $(PYTEST) -m "not slow" $(TESTS)

# a selection of the fast tests with another torch or Python, in an environment of its own:
# make test-torch TORCH=2.8.0, make test-torch PYTHON=python3.13 TORCH=2.13.0
test-torch: $(TORCH_VENV)/.installed
	$(TEST_ENV) $(TORCH_VENV)/bin/python $(PYTEST) -m "not slow" $(TORCH_TESTS)

$(TORCH_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TORCH_VENV)
	sed '/^torch==/d' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet --constraint $(TORCH_VENV)/constraints.txt \
		torch==$(TORCH) --editable ".[test]"
	touch $@

# bridges to other libraries, of which some need torchvision, in an environment of their own
test-bridges: $(BRIDGES_VENV)/.installed
	$(TEST_ENV) $(BRIDGES_VENV)/bin/python $(PYTEST) -m "not slow" tests/bridges

$(BRIDGES_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(BRIDGES_VENV)
	$(BRIDGES_VENV)/bin/python -m pip install --quiet --constraint constraints.txt torch
	$(BRIDGES_VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[test,bridges]"
	touch $@

test-all: lint
	$(TEST_ENV) $(BIN)/python $(PYTEST)

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
	rm -rf build/release build/lib networks/build
	$(BIN)/python -m build --sdist --outdir build/release .
	TRIVGEO_WITHOUT_NETWORKS=1 $(BIN)/python -m build --wheel --outdir build/release .
	$(BIN)/python -m build --wheel --outdir build/release networks
	$(BIN)/python -m twine check --strict build/release/*
	$(TEST_ENV) $(BIN)/python -m tests.release build/release
	$(MAKE) test-bridges
	for torch in $(TORCH_ENDS); do $(MAKE) test-torch TORCH=$$torch || exit 1; done
	for version in $(PYTHON_VERSIONS); do \
		if python$$version --version > /dev/null 2>&1; then \
			$(MAKE) test-torch PYTHON=python$$version TORCH=$(PINNED_TORCH) || exit 1; \
		else echo "python$$version was not found, and not tested"; fi; \
	done

clean:
	rm -rf $(VENV) .venv-* build *.egg-info .mypy_cache .ruff_cache .pytest_cache
