# `make run` and `make test` set themselves up: the first call makes .venv, later ones start at once.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 14
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help run test test-gpu sanitize races mutants lint format tables figures clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "swila needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

run: $(READY)  ## the main job: Temporal SwiLA, SwiLA and DeltaNet on a small CDAR, on the CPU
	@$(BIN)/swila run cdar --preset tiny

test: $(READY)  ## all tests
	@$(BIN)/python -m pytest -q -n auto

# Not the hundreds of random sizes: each would be compiled. First what takes longest, flash-linear-attention's own tuning.
test-gpu: $(READY)  ## the tests of operation, layers, models, generation and captured training on an NVIDIA GPU
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup --device cuda tests/layers/test_fla.py tests/ops tests/layers tests/generation tests/models/test_language_model.py tests/models/test_cross_entropy.py tests/tasks/test_regbench.py tests/experiments/loop/test_chosen_weights.py -k 'not test_any_call'

sanitize: $(READY)  ## every CUDA kernel under compute-sanitizer: memcheck and racecheck
	@$(BIN)/python tools/sanitize.py

races: $(READY)  ## the CUDA kernels of forward and backward on the CPU under ThreadSanitizer (needs g++)
	@$(BIN)/python tools/races.py

mutants: $(READY)  ## break the package one place at a time, and list the changes that no test notices (hours)
	@$(BIN)/python tools/mutants.py --jobs $$($(BIN)/python -c 'import os; print(os.cpu_count())')

lint: $(READY)  ## style and types, as CI checks them
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(READY)  ## rewrite to the project's style
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

tables: $(READY)  ## check where results/ come from, and rewrite the tables of README and docs from them
	@$(BIN)/python -m tools.tables

figures: $(READY)  ## draw the figures of README and docs from results/
	@$(BIN)/python -m tools.figures

clean:  ## remove the environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
