# Two commands for a fresh machine: `make demo` and `make test`.
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
MINUTES ?= 4
# What pip is to install before the package, such as a CPU-only build: TORCH='torch torchvision --index-url URL'
TORCH   ?=
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all lint docs verify mutants bench gpu gpu-packages clean

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH),$(PIP) $(TORCH))
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable ".[test]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/lanternbench sweep configs/demo.yaml --time-budget $(MINUTES)
	$(BIN)/lanternbench report
	@printf '\nOpen %s in a browser.\nThen: %s run --method cool-sd --lambda 2\n' \
	  "$$(ls -t results/*/report/report.html | head -n 1)" $(BIN)/lanternbench

# Six minutes on two idle cores; `test-all` also what is slow or needs a browser, under half an hour.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m 'not slow and not browser'

test-all: $(VENV)/.installed-test
	$(BIN)/python -m pytest --durations=10

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.density

docs: $(VENV)/.installed
	$(PIP) --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

verify: $(VENV)/.installed
	$(BIN)/lanternbench verify --all

mutants: $(VENV)/.installed-test
	$(BIN)/python tests/mutants/run.py --write benchmarks/results/mutants.md

bench: $(VENV)/.installed
	$(BIN)/python -m benchmarks.embedded_world
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.reference_shape

# On a machine with a GPU and torch, installed or not: docs/gpu.md. ARGS=--rehearse needs no GPU.
gpu:
	PYTHONPATH=. $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(ARGS)

# Small packages that a GPU machine without internet may lack, for the Python it has: take build/gpu-packages along.
GPU_PYTHON   ?= 3.12
GPU_PACKAGES ?= pydantic pyyaml safetensors pillow
WHEELS = $(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --target build/gpu-packages \
  --no-compile --only-binary=:all: --python-version $(GPU_PYTHON) $(addprefix --platform manylinux,2014_x86_64 _2_17_x86_64 _2_28_x86_64)
gpu-packages:
	$(WHEELS) $(GPU_PACKAGES)
	$(WHEELS) --no-deps open-clip-torch ftfy wcwidth

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
