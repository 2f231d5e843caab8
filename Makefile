# `make demo` and `make test` need Python 3.11 or newer, git and a network connection for pip; all else goes to .venv.
# Variables: PYTHON (the interpreter to make .venv with), TORCH_INDEX_URL (where torch comes from; on Linux,
# https://download.pytorch.org/whl/cpu saves gigabytes where there is no GPU), PYTEST_WORKERS, WHEEL_TEST_FLAGS (--lowest),
# CONSTRAINTS (the versions that pip may choose), RELEASES (the rows of `make releases`).

PYTHON ?= python3
TORCH_INDEX_URL ?=
PYTEST_WORKERS ?= 2
RELEASES ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
CONSTRAINTS := constraints.txt
REQUIREMENTS := setup.py pyproject.toml constraints.txt
TEST_ENV := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-gpu newest lowest test-releases releases lint docs format wheel-test clean

help:
	@echo "make demo        distil the bundled teacher and compare it with the student (minutes, on the CPU)"
	@echo "make test        lint, types, docs and the tests"
	@echo "make test-slow   the tests that take longer"
	@echo "make test-gpu    the tests that need a CUDA device"
	@echo "make newest      models, training and commands with the newest releases of all that we use, in .venv-newest"
	@echo "make lowest      the same with the lower bounds of setup.py, in .venv-lowest"
	@echo "make releases    first steps with the oldest and the newest releases, for the table of docs/releases.md"
	@echo "make lint        ruff and mypy only"
	@echo "make docs        build the documentation into site/"
	@echo "make wheel-test  build the wheel, install it in a new environment, and decode a first answer there"
	@echo "make format      apply ruff's fixes and its formatting"
	@echo "make clean       remove .venv and everything that was built"

demo: $(VENV)/.demo
	$(BIN)/hf-dparallel demo --output_dir demo_output

# Lint, types and docs run beside the tests, and say something only if they fail: pytest's summary comes last.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory lint docs > $(VENV)/checks.log 2>&1 & checks=$$!; \
	$(PYTEST) -n $(PYTEST_WORKERS) --dist worksteal; tests=$$?; \
	wait $$checks || { cat $(VENV)/checks.log; exit 1; }; exit $$tests

test-slow: $(VENV)/.dev
	$(PYTEST) -n $(PYTEST_WORKERS) --dist worksteal -m "slow and not gpu"

test-gpu: $(VENV)/.dev
	$(PYTEST) -m gpu

newest:
	@rm -rf .venv-newest
	@$(MAKE) --no-print-directory test-releases VENV=.venv-newest TORCH=torch CONSTRAINTS=/dev/null

lowest:
	@mkdir -p .venv-lowest
	@sed -n '/^INSTALL_REQUIRES/,/^]/{s/^ *"\(.*\)>=\([0-9.]*\).*/\1==\2/p;}' setup.py > .venv-lowest/constraints.txt
	@$(MAKE) --no-print-directory test-releases VENV=.venv-lowest CONSTRAINTS=.venv-lowest/constraints.txt \
		TORCH="$$(sed -n '/^torch==/p' .venv-lowest/constraints.txt)"

# The summary of pytest names the releases that are others than those of constraints.txt.
test-releases: $(VENV)/.dev
	$(PYTEST) -n $(PYTEST_WORKERS) --dist worksteal tests/models tests/training tests/cli; tests=$$?; \
	$(BIN)/hf-dparallel generate demo --adapter demo-student "How many are 3 pens and 4 pens ?" && \
	exit $$tests

releases:
	$(PYTHON) scripts/releases/table.py $(RELEASES)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel-test: $(VENV)/.dev
	TORCH_INDEX_URL=$(TORCH_INDEX_URL) $(BIN)/python scripts/wheel_test.py $(WHEEL_TEST_FLAGS)

clean:
	rm -rf .venv* .releases build dist site demo_output src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. Each stamp is renewed when what it was made from changes. torch is installed by itself, first, so
# that TORCH_INDEX_URL applies to it alone.
$(VENV)/.torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("hf-dparallel needs Python 3.11 or newer, " \
		+ "$(PYTHON) is " + sys.version.split()[0] + ". Choose another one: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) "$(TORCH)"
	touch $@

$(VENV)/.demo: $(VENV)/.torch $(REQUIREMENTS)
	$(PIP) install -c $(CONSTRAINTS) -e ".[viz]"
	touch $@

$(VENV)/.dev: $(VENV)/.torch $(REQUIREMENTS)
	$(PIP) install -c $(CONSTRAINTS) -e ".[dev]"
	touch $@
