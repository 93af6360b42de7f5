# Every target does its own set-up: a virtual environment, built from pyproject.toml and
# constraints.txt with pip, and brought up to date when one of them changes.
#
#   make demo                  train a network eager and compiled, compare
#   make test                  the fast tests; TORCH=2.15.0 for another torch, TORCH=nightly-like
#                              for the newest that pip finds, releases to come among them
#   make test-slow             the slow ones
#   make test-long             many more random programs and hostile runs; not in CI
#   make new-torch TORCH=x     what has to be looked at for a new release of torch
#   make test-third-party      other people's models, in an environment of their own; not in CI
#   make test-third-party-short   those of small libraries, beside the project's own environment
#   make notebooks             run the tutorials again and keep what they give
#   make lint | format | docs | bench | clean

TORCH ?=
PYTHON ?=
CXX ?=
JOBS ?= 2
ARGS ?=

ifeq ($(origin CXX),default)
CXX :=
endif

# The newest torch, whatever pyproject.toml says of versions: pip warns, and installs it.
NEWEST := $(filter nightly-like,$(TORCH))
VENV := .venv$(if $(TORCH),-$(TORCH))
RUN := $(VENV)/bin
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
EXPORT_CXX := $(if $(CXX),CXX=$(CXX))
PYTEST := $(EXPORT_CXX) $(RUN)/python -m pytest -n $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-long test-third-party test-third-party-short new-torch lint \
    format docs notebooks bench bench-third-party clean compiler
.DELETE_ON_ERROR:
.SECONDARY:

help:
	@sed -n 's/^#  //p' Makefile

demo: export TORCHINDUCTOR_CACHE_DIR = $(CURDIR)/build/demo-cache
demo: | compiler $(VENV)/.installed-examples
	@rm -rf build/demo-cache  # so that the compile time is that of a first run
	$(EXPORT_CXX) $(RUN)/python examples/digits.py $(ARGS)

test: | compiler $(VENV)/.installed-test
	$(PYTEST) $(ARGS)

test-slow: | compiler $(VENV)/.installed-test
	$(PYTEST) -m "slow and not long" $(ARGS)

test-long: | compiler $(VENV)/.installed-test
	$(PYTEST) -m long $(ARGS)

new-torch: | compiler $(VENV)/.installed-test
	$(EXPORT_CXX) $(RUN)/python scripts/new_torch.py $(ARGS)

# Without dependencies: their versions of torch are others.
THIRD_PARTY := .venv-third-party
$(THIRD_PARTY)/.installed: tests/third_party/requirements.txt pyproject.toml
	@python=$$(PYTHON='$(PYTHON)' sh scripts/find_python.sh) && "$$python" -m venv $(THIRD_PARTY)
	@$(THIRD_PARTY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    -r tests/third_party/requirements.txt -e . && touch $@

test-third-party: export FUNCAOT_THIRD_PARTY = 1
test-third-party: export PYTHONPATH = $(CURDIR):$(CURDIR)/tests/third_party
test-third-party: | compiler $(THIRD_PARTY)/.installed
	$(EXPORT_CXX) $(THIRD_PARTY)/bin/python -m pytest -m "" -o addopts= --import-mode=importlib \
	    tests/third_party -p no:cacheprovider $(ARGS)

# What CI has of them: no compiled wheels, which would bring an environment of their own.
SHORT := build/third_party_short
SHORT_CASES := entmax or similarity or schedulefree or odeint
$(SHORT)/.installed: tests/third_party/short.txt | $(VENV)/.installed-test
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(SHORT) -r $< && touch $@

test-third-party-short: export FUNCAOT_THIRD_PARTY = 1
test-third-party-short: export PYTHONPATH = $(CURDIR)/tests/third_party:$(CURDIR)/$(SHORT)
test-third-party-short: | compiler $(SHORT)/.installed
	$(PYTEST) -m "" -o addopts= --import-mode=importlib tests/third_party -p no:cacheprovider \
	    -k "$(SHORT_CASES)" $(ARGS)

lint: $(VENV)/.installed-lint
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/python scripts/check_lengths.py
	$(RUN)/python scripts/check_torch_imports.py
	$(RUN)/lint-imports
	$(RUN)/pyright --pythonpath $(RUN)/python

format: $(VENV)/.installed-lint
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

docs: $(VENV)/.installed-docs
	$(RUN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

notebooks: | compiler $(VENV)/.installed-test
	$(EXPORT_CXX) $(RUN)/python scripts/run_notebooks.py $(ARGS)

# In this order; a script that fails doesn't stop the others.
BENCHMARKS := call_path residuals attention operator training workloads cold_start choosing deploy page

bench: | compiler $(VENV)/.installed-bench
	@failed=; for name in $(BENCHMARKS); do \
	    echo "== benchmarks/$$name.py"; began=$$(date +%s); \
	    $(EXPORT_CXX) $(RUN)/python benchmarks/$$name.py $(ARGS) || failed="$$failed $$name"; \
	    echo "== $$name: $$(( $$(date +%s) - began )) s"; done; \
	    $(MAKE) --no-print-directory bench-third-party || failed="$$failed force_fields"; \
	    if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# Other people's models, where make test-third-party has set up their environment.
bench-third-party: export PYTHONPATH = $(CURDIR)
bench-third-party: | compiler
	@if [ -e $(THIRD_PARTY)/.installed ]; then \
	    echo "== benchmarks/third_party/force_fields.py"; \
	    $(EXPORT_CXX) $(THIRD_PARTY)/bin/python benchmarks/third_party/force_fields.py $(ARGS); \
	else echo "== force_fields: skipped, make $(THIRD_PARTY)/.installed sets it up"; fi

clean:
	rm -rf build dist docs/_build .pytest_cache .ruff_cache .hypothesis .import_linter_cache .venv .venv-*

# --- set-up ------------------------------------------------------------------------------------

compiler:
	@CXX='$(CXX)' sh scripts/check_compiler.sh

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' sh scripts/find_python.sh) && \
	    echo "Creating $(VENV) with $$python" && "$$python" -m venv --clear $(VENV) && touch $@

# The same pins but for torch's.
$(VENV)/constraints.txt: constraints.txt $(VENV)/.created
	@sed '$(if $(NEWEST),/^torch==/d,s/^torch==.*/torch==$(TORCH)/)' constraints.txt > $@

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) $(VENV)/.created
	@echo "Installing funcaot[$*] into $(VENV) (a few minutes the first time)"
	@$(RUN)/python -m pip install --quiet --disable-pip-version-check \
	    -c $(CONSTRAINTS) -e '.[$*]'
	@$(if $(NEWEST),$(RUN)/python -m pip install --disable-pip-version-check --pre --upgrade torch)
	@touch $@
