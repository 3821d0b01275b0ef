# Two commands for a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint verify mutants bench clean

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/lanternbench sweep configs/demo.yaml
	$(BIN)/lanternbench report

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

verify: $(VENV)/.installed
	$(BIN)/lanternbench verify --all

mutants: $(VENV)/.installed-test
	$(BIN)/python tests/mutants/run.py --write docs/verification.md

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/embedded_world.py
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/reference_shape.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
