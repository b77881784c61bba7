# Every command of the project; `make` alone lists them. Needs Python >= 3.11 with its venv module, and make.
#
#   PYTHON=python3.12    interpreter for the environment; by default the first of python3, python3.14 ... python3.11
#                        that is new enough
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                        package index for torch alone, here of its CPU builds; by default pip's own index, whose
#                        Linux build brings CUDA
#   ARGS="--seed 1"      further arguments of `tocsin demo` or of pytest

VENV := .venv
TORCH_INDEX ?=
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\)$$/\1/p' constraints.txt)
PACKAGES := schemas diagnostics trainer
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

PYTHON ?= $(shell for python in $(CANDIDATES); do $$python $(NEW_ENOUGH) 2>/dev/null && echo $$python && break; done)

CHECK_PYTHON = '$(PYTHON)' $(NEW_ENOUGH) 2>/dev/null || { \
  echo 'PYTHON must be Python 3.11 or newer, got "$(PYTHON)". Install one, or name it: PYTHON=/path/to/python3.11' >&2; \
  exit 1; }

.PHONY: help demo test check generate fix clean

help:
	@echo 'make demo      install, then pre-train a tiny model and improve it by asynchronous GRPO'
	@echo 'make test      install, check, and run every test'
	@echo 'make check     format, lint, types, and whether the generated files are fresh'
	@echo 'make generate  write schemas/json/ and the pages in docs/'
	@echo 'make fix       format, and repair what the linter can repair'
	@echo 'make clean     remove the environment and everything built; runs/ stays'

demo: $(VENV)/.installed-train
	$(BIN)/tocsin demo $(ARGS)

test: check
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev build/mypy/tocsin
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPYPATH=build/mypy $(BIN)/mypy $(PACKAGES:%=-p tocsin.%)
	$(BIN)/python -m tocsin.schemas --check
	$(BIN)/python -m tocsin.schemas.config_docs --check
	$(BIN)/python -m tocsin.diagnostics.catalogue --check
	$(BIN)/python -m tocsin.diagnostics.cli_docs --check

generate: $(VENV)/.installed-dev
	$(BIN)/python -m tocsin.schemas
	$(BIN)/python -m tocsin.schemas.config_docs
	$(BIN)/python -m tocsin.diagnostics.catalogue
	$(BIN)/python -m tocsin.diagnostics.cli_docs

fix: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# mypy does not follow the finder of an editable install, so it gets the import names as a tree of links.
build/mypy/tocsin: Makefile
	mkdir -p $@
	for package in $(PACKAGES); do ln -sfn ../../../$$package $@/$$package; done
	touch $@

# torch comes first and without its dependencies: an index that holds only torch need not hold the pinned rest.
$(VENV)/.installed-train: pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) )$(TORCH)
	$(PIP) install -c constraints.txt -e '.[train]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-train
	$(PIP) install -c constraints.txt -e '.[train,dev]'
	touch $@
