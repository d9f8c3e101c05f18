# Everything runs in .venv, which the first target makes. Only git, make and Python 3.10 or newer are needed.
#   make plan    install Astra and plan a catalog model on catalog GPUs
#   make test    install the development tools, then lint, type-check and test
#   make test-exhaustive   all of what make test takes a sample of: every example, run and problem
#   make check   lint and types alone    make bench  speed, recorded    make clean  start over
#   make explore   the property tests with examples never drawn before; make test draws the same ones each time
#   make modules   how many modules of the package one plan touches
#   make gate BASE=main    the answers of two states of Astra compared: equal, moved or broken
#   make test-frameworks   exports through the real frameworks, in cached environments under .venvs
#   make contract   every runtime x model x GPUs x task: all plans shown are exported, recorded
#   make docs    the documentation as a site in site/, every command of the cookbook run, every warning an error
#   make fuzz    every parser under a coverage-guided fuzzer, SECONDS=20 each; what is found is in .fuzz/found
#   make random  random requests with their laws checked, SECONDS=60    make dist  wheel and sdist in dist/
#   make lock    requirements.lock anew     make audit  known faults of what it names (needs the network)

# The first interpreter that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$python; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
ARGS ?=
BASE ?= main
SECONDS ?=
TOOLS := .venvs

.DEFAULT_GOAL := help
.PHONY: help plan test tests test-exhaustive explore test-frameworks contract check lint types format bench gate modules docs fuzz random dist lock audit \
	clean venv-without-ensurepip

help:
	@sed -n '2,15s/^# *//p' Makefile

plan: $(VENV)/.installed
	$(BIN)/astra plan llama-2-70b --gpus 512xH100 --batch 1024 --seq 4096 --tokens 1T $(ARGS)

# Types are checked beside the tests, on whatever core is free.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 types tests

tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

# The tests and cases marked exhaustive, and every example of property tests that draw a few (tests/tiers.py).
test-exhaustive: $(VENV)/.installed-dev
	ASTRA_EXHAUSTIVE=1 $(BIN)/python -m pytest -m exhaustive $(ARGS)

explore: $(VENV)/.installed-dev
	ASTRA_EXPLORE=$${ASTRA_EXPLORE:-1} ASTRA_SEED=$${ASTRA_SEED:-$$(date +%s)} $(BIN)/python -m pytest $(ARGS)

# What cannot be installed is skipped with a printed reason; -s shows the versions that were used.
test-frameworks: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py
	ASTRA_FRAMEWORKS=1 $(BIN)/python -m pytest -n 2 -s -rs tests/frameworks $(ARGS)

contract: $(VENV)/.installed-dev
	$(BIN)/python -m tests.contract --out benchmarks/results/contract.json $(ARGS)

check: lint types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
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

# Each of these has an environment of its own, made once (tests/frameworks/install.py).
docs: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py docs
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/docs/bin/python -m mkdocs build --strict $(ARGS)

fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py fuzz
	$(TOOLS)/fuzz/bin/python -m tests.fuzz --seconds $(or $(SECONDS),20) $(ARGS)

random: $(VENV)/.installed-dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.random_requests --seconds $(or $(SECONDS),60) $(ARGS)

dist: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py release
	rm -rf dist
	$(TOOLS)/release/bin/python -m build --no-isolation $(ARGS)

lock: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py release
	$(TOOLS)/release/bin/uv pip compile pyproject.toml --universal --python-version 3.10 --generate-hashes \
		--upgrade --quiet --custom-compile-command "make lock" --default-index https://pypi.org/simple --output-file requirements.lock

# What is locked, and what the extras would install today.
audit: $(VENV)/.installed-dev
	$(BIN)/python tests/frameworks/install.py release
	$(TOOLS)/release/bin/uv pip compile pyproject.toml --universal --python-version 3.10 --all-extras --quiet \
		--default-index https://pypi.org/simple --output-file $(TOOLS)/release/extras.lock
	$(BIN)/python -m tools.audit requirements.lock $(TOOLS)/release/extras.lock

clean:
	rm -rf $(VENV) .venvs .fuzz site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
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
