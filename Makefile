# Everything happens in .venv, which the first command creates.
#
#   make demo                 solve a mixed cluster, run the plan on local processes, verify it
#   make test                 every test that is not marked slow
#   make test-slow            the slow ones
#   make lint types           ruff and mypy
#
#   TORCH='torch==2.14.0'     another torch
#   PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
#                             where the plain index serves CUDA builds and the small one will do
#   PYTHON=/path/to/python3   another interpreter (3.11 or later)

TORCH ?= torch==2.13.0
PIP_ARGS ?=
PYTHON ?=
PYTEST_ARGS ?=

# Ranks are processes: one thread each, or they fight over the cores.
export OMP_NUM_THREADS ?= 1

VENV := .venv
BIN := $(VENV)/bin
# A stamp per torch requirement, so that another TORCH installs again.
KEY := $(shell printf '%s' '$(TORCH)' | cksum | cut -d' ' -f1)
RUN_STAMP := $(VENV)/.installed-run-$(KEY)
TEST_STAMP := $(VENV)/.installed-test-$(KEY)
SOURCES := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint format types wheel clean

demo: $(RUN_STAMP)
	$(BIN)/python -m hexisolve demo

test: $(TEST_STAMP)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-slow: $(TEST_STAMP)
	$(BIN)/python -m pytest -m slow $(PYTEST_ARGS)

lint: $(TEST_STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: $(TEST_STAMP)
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

types: $(TEST_STAMP)
	$(BIN)/python -m mypy --strict hexisolve

wheel: $(TEST_STAMP)
	$(BIN)/python -m build --wheel

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.created:
	@.ci/make-venv $(VENV) $(PYTHON)
	@touch $@

$(RUN_STAMP): $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt '$(TORCH)' -e .
	@rm -f $(VENV)/.installed-*
	@touch $@

$(TEST_STAMP): $(VENV)/.created $(SOURCES)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) -c constraints.txt '$(TORCH)' -e '.[test]'
	@rm -f $(VENV)/.installed-*
	@touch $@ $(RUN_STAMP)
