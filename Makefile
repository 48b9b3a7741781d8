# What a developer and CI run. Every target prepares what it needs, on a fresh machine too; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Compiled files are kept whatever the environment says: without them every command compiles all of its source anew.
export PYTHONDONTWRITEBYTECODE :=

BIN := .venv/bin
PYTHON := $(BIN)/python
# The engine around a command: one that answers is used as it is, else a private one runs as long as the command.
ENGINE := $(PYTHON) dev/engine.py run
IMAGES := $(PYTHON) -m executor.images build base
# Three at a time on two cores: most tests wait for a deadline or a start more than they compute.
PYTEST_ARGS ?= -n 3 --dist loadfile
# The tests of frameworks, each file in a process of its own: some patch the event loop of their process, and all of
# them together take longer to import than to run.
FRAMEWORKS := $(patsubst tests/integrations/test_%.py,.framework-%,$(wildcard tests/integrations/test_*.py))
IN_TURNS := -j 3 -k $(if $(filter output-sync,$(.FEATURES)),-O)
LAST_FAILED := --last-failed --last-failed-no-failures none
BENCH_ARGS ?=

# The command that `make demo` shows.
DEMO_COMMAND = $(BIN)/executor run sales-report --skills skills --input skills/data/us-population.csv \
	--output 'out/**' --save demo-out -- python3 scripts/report.py inputs/us-population.csv

.PHONY: help setup setup-test demo test retest lint format rows bench bench-peers soak test-office lock-office images lock clean engine-start engine-stop

help: ## this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## /  \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## /  \1  /p' $(MAKEFILE_LIST)

setup: ## the virtual environment and, as root on Debian, the system packages
	@dev/setup.sh

setup-test:
	@dev/setup.sh test

demo: setup ## one skill script in a sandbox, from nothing to its output files in demo-out/
	@$(ENGINE) --optional -- $(MAKE) --silent .demo

test: setup-test ## everything CI checks, on both runtimes
	@$(ENGINE) -- $(MAKE) --silent .test

retest: setup-test ## only what failed the last time
	@$(ENGINE) -- $(BASH_C) '$(BIN)/pytest $(LAST_FAILED) --ignore tests/integrations || [ $$? = 5 ]; \
		$(MAKE) --silent $(IN_TURNS) $(FRAMEWORKS) FRAMEWORK_ARGS="$(LAST_FAILED)"'

lint: setup ## ruff and mypy
	@$(MAKE) --silent .lint

format: setup ## let ruff lay out the code
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

rows: setup ## docs/rows.md anew: which tests hold which promise of other systems
	@$(PYTHON) dev/rows.py

bench: setup ## measure starts, runs and transfers
	@$(ENGINE) -- $(BASH_C) '$(IMAGES) \
		&& $(PYTHON) -m tests.bench.bench --json docs/bench.json --svg docs/bench.svg $(BENCH_ARGS) \
		&& $(PYTHON) tests/bench/bridge.py && $(PYTHON) -m tests.bench.scale'

bench-peers: setup ## the same jobs by other packages, each in an environment of its own
	@$(ENGINE) -- $(BASH_C) '$(IMAGES) \
		&& $(PYTHON) -m tests.bench.peers --json docs/bench-peers.json --svg docs/bench-peers.svg $(BENCH_ARGS)'

soak: setup ## the same, for a long time
	@$(ENGINE) -- $(BASH_C) '$(IMAGES) && EXECUTOR_SOAK=1 $(BIN)/pytest tests/unit tests/hostile tests/faults $(PYTEST_ARGS) \
		&& EXECUTOR_SOAK=1 $(BIN)/pytest tests/conformance/test_executor_test.py tests/conformance/test_deps.py \
			-k "side_by_side or people_use" --timeout 7200 \
		&& EXECUTOR_SOAK=1 $(BIN)/pytest tests/conformance/test_warm.py'

test-office: setup-test ## build images/office (large) and test each of its tools on both runtimes
	@$(ENGINE) -- $(BASH_C) '$(IMAGES) && $(PYTHON) -m executor.images build office \
		&& EXECUTOR_OFFICE=1 EXECUTOR_REQUIRE_RUNTIMES=local,container $(BIN)/pytest tests/office'

lock-office: setup-test ## resolve the packages of images/office anew
	@$(ENGINE) --optional -- $(BASH_C) '$(IMAGES) && $(PYTHON) dev/lock_image.py office sharp'

images: setup ## the image on the engine and the root filesystem
	@$(ENGINE) --optional -- $(IMAGES)

lock: setup ## pin the versions that are installed now
	@{ sed -n '/^#/p' requirements.lock; \
		$(PYTHON) -m pip list --format freeze | grep -v -i -E '^(pip|setuptools|wheel|skill-executor)=='; \
	} > .requirements.new && mv .requirements.new requirements.lock

engine-start: setup ## a private engine that stays until engine-stop
	@$(PYTHON) dev/engine.py start

engine-stop: setup ## end the engine of engine-start
	@$(PYTHON) dev/engine.py stop

clean: ## remove what is made in the checkout (the images stay)
	@rm -rf demo-out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# --- the steps, run inside the engine -------------------------------------------------------------------------

BASH_C := bash -eu -o pipefail -c

.PHONY: .demo .test .lint
.demo:
	@echo "== image"
	@$(IMAGES)
	@echo "== $(DEMO_COMMAND)"
	@rm -rf demo-out
	@$(DEMO_COMMAND)
	@echo "== demo-out"
	@find demo-out -type f -exec ls -l {} +

.lint:
	@echo "== ruff check"
	@$(BIN)/ruff check .
	@echo "== ruff format --check"
	@$(BIN)/ruff format --check .
	@echo "== mypy"
	@$(BIN)/mypy

.test:
	@echo "== images"
	@$(IMAGES) --target container --target local
	@$(BIN)/pytest --collect-only -q --ignore tests/integrations >/dev/null 2>&1 & \
		$(MAKE) .lint; wait  # the tests are compiled meanwhile, once instead of by each worker
	@echo "== pytest"
	@failed=0; $(BIN)/pytest $(PYTEST_ARGS) --ignore tests/integrations || failed=1; \
		echo "== pytest, frameworks"; \
		$(MAKE) $(IN_TURNS) $(FRAMEWORKS) || failed=1; exit $$failed

.framework-%:
	@$(BIN)/pytest -q -o cache_dir=.pytest_cache/$* $(FRAMEWORK_ARGS) tests/integrations/test_$*.py || [ $$? = 5 ]
