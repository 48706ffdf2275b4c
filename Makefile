# `make mill` and `make test` need Python 3.11 or later and g++; they install everything else below .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Without compiling every Python file of torch and the CUDA toolkit, which takes a third of the time: imports compile what is used.
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
EXTRAS := toolchain,dsl,cli,tune,models,docs,dev
# Tried twice: an index that lists some versions for a moment only makes pip say that requirements conflict.
install = $(INSTALL) $(1) || { echo "Once more in 20 s: $(1)" >&2; sleep 20; $(INSTALL) $(1); }
# Processes that run tests: one more than cores, since some wait for what they started.
JOBS ?= $(shell expr $$(nproc) + 1)

# Tests are some hundred processes, and each would compile torch's Python files again, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help mill wheels test style quality smoke clean

help:
	@echo "make mill     set up, build the smoke selection, run each op once"
	@echo "make wheels   set up, build the default selection, write both packages to dist"
	@echo "make test     set up, build, check style and types, run all tests that this machine can run"
	@echo "make style    format the code"
	@echo "make quality  check style, types, layers and the emitted files"
	@echo "make clean    delete what make made: .venv and .gemmill"

mill: smoke
	$(BIN)/gemmill verify --quick

wheels: $(READY)
	$(BIN)/gemmill build
	$(BIN)/python -m build --wheel --no-isolation --outdir dist
	$(BIN)/gemmill wheel --kernels --out dist

# Checks take one core and wait for none of what the compilers make.
test: $(READY)
	$(MAKE) --jobs 2 quality smoke
	$(BIN)/pytest --numprocesses $(JOBS)

smoke: $(READY)
	$(BIN)/gemmill build --select smoke

style: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

quality: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/gemmill generate --check

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gemmill needs Python 3.11 or later, $(PYTHON) is $$($(PYTHON) -V 2>&1): name another with make PYTHON=..." >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "gemmill needs a C++ compiler: apt install g++" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make environments: apt install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV): torch, CUDA compiler, CUTLASS headers, CuTe DSL (about a minute and 2.5 GB)"
	$(PYTHON) -m venv $(VENV)
	$(call install,--editable '.[$(EXTRAS)]')
	$(call install,--no-deps nvidia-cutlass)
	@touch $@

clean:
	rm -rf $(VENV) .gemmill
