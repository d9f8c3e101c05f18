# Everything runs in .venv, which the first target makes. Only git, make and Python 3.10 or newer are needed.
#   make plan    install Astra and plan a catalog model on catalog GPUs
#   make test    install the development tools, then lint, type-check and test
#   make check   lint and types alone    make bench  speed, recorded    make clean  start over
#   make explore   the property tests with examples never drawn before; make test draws the same ones each time
#   make modules   how many modules of the package one plan touches
#   make gate BASE=main    the answers of two states of Astra compared: equal, moved or broken
#   make test-frameworks   exports through the real frameworks, in cached environments under .venvs
#   make contract   every runtime x model x GPUs x task: all plans shown are exported, recorded

# The first interpreter that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$python; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
ARGS ?=
BASE ?= main

.DEFAULT_GOAL := help
.PHONY: help plan test explore test-frameworks contract check format bench gate modules clean venv-without-ensurepip

help:
	@sed -n '2,10s/^# *//p' Makefile

plan: $(VENV)/.installed
	$(BIN)/astra plan llama-2-70b --gpus 512xH100 --batch 1024 --seq 4096 --tokens 1T $(ARGS)

test: check
	$(BIN)/python -m pytest $(ARGS)

explore: $(VENV)/.installed-dev
	ASTRA_EXPLORE=$${ASTRA_EXPLORE:-1} ASTRA_SEED=$${ASTRA_SEED:-$$(date +%s)} $(BIN)/python -m pytest $(ARGS)

# What cannot be installed is skipped with a printed reason; -s shows the versions that were used.
test-frameworks: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py
	ASTRA_FRAMEWORKS=1 $(BIN)/python -m pytest -n 2 -s -rs tests/frameworks $(ARGS)

contract: $(VENV)/.installed-dev
	$(BIN)/python -m tests.contract --out benchmarks/results/contract.json $(ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/plan_speed.py $(ARGS)

# A commit against the working tree; OTHER=... for another commit.
gate: $(VENV)/.installed-dev
	$(BIN)/python -m tools.gate $(BASE) $(OTHER) $(ARGS)

modules: $(VENV)/.installed-dev
	$(BIN)/python -m tools.modules $(ARGS)

clean:
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: Python 3.10 or newer is needed (set PYTHON=...)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || $(MAKE) --no-print-directory venv-without-ensurepip

# Debian splits ensurepip off into python3-venv; where it is missing, the system's pip fills the environment.
venv-without-ensurepip:
	rm -rf $(VENV)
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python install --quiet pip || { rm -rf $(VENV); exit 1; }

# The stamps make a second run fast; a changed pyproject.toml installs again.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.installed $@
