# Two commands are enough: `make demo` shows the whole loop at work, `make test` runs every test.
# Each installs what it needs into the state folder (.dukou) and nowhere else.

PYTHON ?= python3
# CPU and CUDA builds of torch differ by machine, so it stays out of the lock. On a GPU: make TORCH='torch>=2.13' …
TORCH ?= torch==2.13.0
STATE := .dukou
BIN := $(STATE)/venv/bin
STAMP := $(STATE)/venv/.installed
TESTS = $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help demo test up down reset engine engine-install lint types unit fuzz status psql bench lock clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(STAMP): locks/dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "python 3.11 or newer is needed (PYTHON=…)" >&2; exit 1; }
	@echo "installing Dukou into $(STATE)/venv (about a minute and a half)" >&2
	@$(PYTHON) -m venv $(STATE)/venv
	@$(PIP) install '$(TORCH)' 2>&1 | grep -v 'is ignored: it is neither' >&2 || true
	@$(PIP) install --no-deps --require-hashes -r locks/dev.lock 2>&1 | grep -v 'is ignored: it is neither' >&2 || true
	@$(PIP) install --no-deps --no-build-isolation -e . 2>&1 | grep -v 'is ignored: it is neither' >&2 || true
	@LITELLM_LOCAL_MODEL_COST_MAP=True $(BIN)/python -c 'import torch, litellm, sqlalchemy, dukou, gateway, learner'
	@touch $@

engine-install: $(STAMP)  ## install SGLang and the default model, each once
	@$(BIN)/python -m dukou engine install
	@$(BIN)/python -m dukou engine models

engine: engine-install  ## start the real SGLang in the foreground
	@$(BIN)/python -m dukou engine start

demo: engine-install  ## the whole loop on this machine, no GPU, no key; ends with a table, a plot and JSON
	@$(BIN)/python -m dukou demo

up: engine-install  ## start Postgres, SGLang, gateway and learner, and stay
	@$(BIN)/python -m dukou up

down: $(STAMP)  ## stop what `make up` started
	@$(BIN)/python -m dukou down

reset: $(STAMP)  ## forget all recorded data, checkpoints and versions, after asking
	@$(BIN)/python -m dukou reset

status: $(STAMP)  ## the funnel, and what the learner waits for
	@$(BIN)/python -m learner status

psql: $(STAMP)  ## an SQL shell on the database; make psql ARGS="-c 'select …'"
	@$(BIN)/python -m dukou psql $(ARGS)

lint: $(STAMP)  ## ruff, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports

types: $(STAMP)  ## strict types
	@$(BIN)/mypy

unit: $(STAMP)  ## the fast tests alone
	@$(TESTS) tests/unit

fuzz: $(STAMP)  ## tests that make their own inputs, ten times as many and with a fresh seed
	@$(TESTS) --hypothesis-profile=fresh tests/unit/test_hostile.py tests/integration/test_drain_hostile.py

test: engine-install lint types  ## lint, types and the whole suite, the real SGLang included
	@$(TESTS)

bench: $(STAMP)  ## make bench B=name; without B, the list
ifdef B
	@$(BIN)/python -m bench.$(B) --json
else
	@for f in bench/[a-z]*.py; do printf '%-12s ' $$(basename $$f .py); $(BIN)/python -c 'import ast,sys; print(ast.get_docstring(ast.parse(open(sys.argv[1]).read())).splitlines()[0])' $$f; done
endif

lock:  ## write the locks anew from pyproject.toml (needs uv)
	@uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes --no-header --no-emit-index-url --no-annotate -q --extra embedded -o locks/gateway.lock
	@uv pip compile pyproject.toml --python-version 3.11 --universal --generate-hashes --no-header --no-emit-index-url --no-annotate -q --extra embedded --extra learner --extra demo --group dev -o locks/dev.lock

clean:  ## remove everything that make installed or Dukou wrote
	@rm -rf $(STATE)
