# Every target does its own set-up in $(VENV): Linux, python3 (3.10 or later, with venv), g++ and
# make are enough. Work that is done is not done again: stamps lie in $(VENV)/stamps.
#
#   make test  ARGS="-k all_reduce -x"
#   make demo  TORCH="torch==2.12.0"
#   make build TORCH="torch==2.14.1"

# Compiled modules are kept, whatever the caller's environment says: each rank imports a test's file.
export PYTHONDONTWRITEBYTECODE :=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
CUDA_TORCH ?= $(shell sed -n '/^torch==/p' requirements/torch-newest.txt)
ARGS ?=
# What the programs for a GPU are compiled for, as in TORCH_CUDA_ARCH_LIST.
GPU_ARCHITECTURES ?= 9.0
# Tests of several files run side by side; 0: in one process, as pytest -s and --pdb need it.
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMPS := $(VENV)/stamps
# Named after the text of TORCH, so that another torch is installed as soon as it is asked for.
TORCH_STAMP := $(STAMPS)/torch-$(shell printf '%s' '$(TORCH)' | cksum | cut -d ' ' -f 1)
BUILD_LOG := $(VENV)/build.log

# What setup.py imports; other tools change nothing that is built.
BUILD_TOOLS := $(addprefix tools/,build_host.py build_record.py cuda_toolkit.py native_build.py source_digest.py torch_releases.py)
# Folders are listed too: their time changes when a file comes or goes.
SOURCES := setup.py pyproject.toml $(BUILD_TOOLS) $(shell find csrc) fastcomm/__init__.py

.PHONY: help build wheels gpu-build gpu-programs test release-check conformance soak demo bench tables site fuzz lint format compdb gpu-check clean distclean FORCE

help: ## list the targets
	@sed -n -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 23

build: $(STAMPS)/build ## set up .venv and compile

test: $(STAMPS)/build $(STAMPS)/nvcc ## build and run the tests; pytest's arguments in ARGS, WORKERS=0 for one process
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  --junitxml=build/junit.xml $(ARGS)

release-check: $(STAMPS)/build ## what takes long: more seeds and models, other Pythons and torches; half an hour
	$(BIN)/python tools/release_check.py $(ARGS)

conformance: $(STAMPS)/build ## torch's own tests for Gloo, on fastcomm; ARGS="--ranks 2 -k reduce --backend gloo"
	PYTHONPATH=tests $(BIN)/python -m conformance.run $(ARGS)

soak: $(STAMPS)/build ## random schedules with faults; ARGS="--schedules N --seed S", or "--replay SEED"
	PYTHONPATH=tests $(BIN)/python -m faults.soak $(ARGS)

demo: $(STAMPS)/build ## train over fastcomm and over Gloo, measure both, plot
	$(BIN)/python benchmarks/demo.py $(ARGS)

bench: $(STAMPS)/build ## the microbenchmarks; arguments in ARGS
	$(BIN)/python -m fastcomm.bench $(ARGS)

tables: $(STAMPS)/build ## make the tables of the documents anew from the records
	$(BIN)/python tools/doc_tables.py $(ARGS)

site: $(STAMPS)/build ## the documents for a browser: build/site/index.html; ARGS="--into FOLDER --base /path/"
	$(BIN)/python tools/docs_site.py $(ARGS)

fuzz: $(STAMPS)/dev ## a million hostile handshakes under libFuzzer; needs clang; ARGS="--runs 10000"
	$(BIN)/python tests/fuzz/run.py $(ARGS)

lint: $(STAMPS)/dev ## ruff, mypy and clang-format, as in CI
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc tests/cpp tests/fuzz tests/ptx tests/shim tests/sim benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \
	  | xargs $(BIN)/clang-format --dry-run -Werror

format: $(STAMPS)/dev ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find csrc tests/cpp tests/fuzz tests/ptx tests/shim tests/sim benchmarks -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc' \
	  | xargs $(BIN)/clang-format -i

# In a copy of the sources: the library of .venv, which lies beside the sources, stays what it is.
gpu-build: gpu-programs ## with nvcc: compile the CUDA flavour for every architecture; writes docs/kernels.md
	$(PYTHON) tools/copy_tree.py build/cuda-tree
	FASTCOMM_CUDA=1 TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0;12.0+PTX" $(MAKE) -C build/cuda-tree build \
	  VENV=$(CURDIR)/.venv-cuda TORCH=$(CUDA_TORCH)
	.venv-cuda/bin/python build/cuda-tree/tools/kernel_table.py
	cp build/cuda-tree/docs/kernels.md docs/kernels.md

# They need no torch. build/gpu can be carried to a machine with a GPU, where gpu-check uses it.
gpu-programs: ## with nvcc: compile into build/gpu what gpu-check runs; GPU_ARCHITECTURES="9.0"
	PATH="$(abspath $(BIN)):$$PATH" $(PYTHON) tools/gpu_programs.py --architectures "$(GPU_ARCHITECTURES)"

wheels: $(STAMPS)/dev ## one wheel for this Python and every torch, without a compiler to install it; ARGS="--torch 2.13"
	$(PIP) install -q -r requirements/wheels.txt
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/wheels.py $(ARGS)

compdb: $(STAMPS)/build ## compile_commands.json for editors; every build writes it
	@test -s compile_commands.json || { rm $(STAMPS)/build; $(MAKE) --no-print-directory build; }
	@echo "compile_commands.json is up to date"

# No .venv here: a machine that is lent with its GPU may have no network.
gpu-check: ## with a GPU: build with what $(PYTHON) has, test, measure; goes on where it ended; ARGS="--list", or "--rehearse" without one
	$(PYTHON) tools/gpu_check.py $(ARGS)

clean: ## remove everything built, keep .venv
	rm -rf build dist *.egg-info fastcomm/_C*.so fastcomm/_build_info.py compile_commands.json
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis $(STAMPS)/build
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV) demo-results

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "fastcomm needs Python 3.10 or later; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# pip's progress bar is for terminals only; the lines before it tell what is going on elsewhere.
$(TORCH_STAMP): $(STAMPS)/venv
	@echo "installing $(TORCH) into $(VENV): some minutes the first time"
	$(PIP) install $(TORCH)
	@rm -f $(STAMPS)/torch-* $(STAMPS)/build && touch $@

$(STAMPS)/dev: $(TORCH_STAMP) $(wildcard requirements/*.txt)
	$(PIP) install -r requirements/dev.txt
	@touch $@

# nvcc for tests, where none is installed: what reads its output is skipped without. Asked for again
# by the next `make test` where it could not be had.
$(STAMPS)/nvcc: $(STAMPS)/dev
	@if PYTHONPATH=tools $(BIN)/python -c 'import cuda_toolkit as c; exit(c.find_cuda_home() is None)'; \
	  then touch $@; \
	else \
	  echo "no nvcc here: installing it into $(VENV)/nvcc, for tests alone (90 MB)"; \
	  $(PIP) install -q --retries 1 --upgrade --target $(VENV)/nvcc -r requirements/nvcc.txt \
	    && ln -sfn lib $(VENV)/nvcc/nvidia/cu13/lib64 && touch $@ \
	    || echo "nvcc could not be installed: tests that need it will be skipped"; \
	fi

# The extension is rebuilt when a source is newer or when somebody removed it. One line for each
# file is shown; the whole output is kept in the log, and shown when the build fails.
$(STAMPS)/build: $(STAMPS)/dev $(SOURCES) $(if $(wildcard fastcomm/_C*.so),,FORCE)
	@echo "building fastcomm; the whole output goes to $(BUILD_LOG)"
	@$(PIP) install -v --no-build-isolation -e . 2>&1 | tee $(BUILD_LOG) | sed -u -n -E \
	  -e 's/^ *(\[[0-9]+\/[0-9]+\]) .* -c [^ ]*(csrc\/[^ ]+) .*/  \1 torch: \2/p;t' \
	  -e 's/^ *(\[[0-9]+\/[0-9]+\] .{1,90})$$/  \1/p;t' \
	  -e '/fastcomm: |[Ee]rror: |[^ ]: warning: |Successfully installed/p' \
	  || { tail -n 80 $(BUILD_LOG); echo "the build failed, see $(BUILD_LOG)" >&2; exit 1; }
	@touch $@
