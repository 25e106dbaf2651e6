# Two commands from a fresh clone: `make demo` and `make test`.
# Both make a virtual environment in .venv first, once.
#
#   PYTHON=python3.12   the interpreter to make .venv with
#   TORCH=...           what to install torch from; a CPU-only wheel saves several GB where no GPU is used
#   WORKERS=2           test processes

PYTHON  ?= python3
TORCH   ?= torch==2.13.0
WORKERS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP   := $(BIN)/python -m pip -qq --disable-pip-version-check
# one thread a process: the tests are small, and threads of two processes would fight over the cores
# and the same drawn examples each time; ASSAY_HYPOTHESIS_PROFILE=thorough draws many others
ASSAY_HYPOTHESIS_PROFILE ?= ci
ENV   := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 ASSAY_HYPOTHESIS_PROFILE=$(ASSAY_HYPOTHESIS_PROFILE)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: bench-decode help demo test test-all lint types pytest pytest-all format install clean

help:
	@echo "make demo      the first study, from nothing to a verdict and a report: about 13 CPU-minutes, 7 minutes on two cores"
	@echo "make test      format, lint, types, tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      format and lint only"
	@echo "make format    rewrite the sources in the house format"
	@echo "make bench-decode  greedy decode beside transformers and llama.cpp (minutes; the first time builds llama.cpp)"
	@echo "make clean     remove .venv, caches and build output"

demo: $(STAMP)
	$(BIN)/assay demo

test: lint types pytest

test-all: lint types pytest-all

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(ENV) $(BIN)/pytest -n $(WORKERS)

pytest-all: $(STAMP)
	$(ENV) $(BIN)/pytest -n $(WORKERS) -m ""

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# each peer in an environment of its own, made once
bench-decode: $(STAMP) .bench/transformers/.installed .bench/llama/.installed
	$(BIN)/python bench/decode.py

.bench/transformers/.installed:
	$(PYTHON) -m venv .bench/transformers
	.bench/transformers/bin/python -m pip install -q -c constraints.txt $(TORCH) transformers
	@touch $@

.bench/llama/.installed:
	$(PYTHON) -m venv .bench/llama
	CMAKE_ARGS="-DGGML_NATIVE=ON" .bench/llama/bin/python -m pip install -q llama-cpp-python==0.3.36 gguf numpy
	@touch $@

install: $(STAMP)

# torch first and by itself: the index that serves it decides between a CPU wheel and several GB of CUDA
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "assay needs Python 3.11 or newer; try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing assay and its tools into $(VENV) (a few minutes the first time)"
	@$(PIP) install -c constraints.txt $(TORCH)
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
