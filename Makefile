# The one entry point. `make help` lists the targets.
# Everything is created inside the checkout (.venv) or in the caches of uv, Go and BigFleet under the
# user's home; nothing is installed globally.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

# An environment that was copied or moved here runs the code of another place, or none; one whose Python is
# gone or was replaced finds nothing. Either is made anew.
ifneq ($(shell $(BIN)/python -c 'import bigfleet' 2>/dev/null && cat $(READY) 2>/dev/null),$(CURDIR))
.PHONY: $(READY)
endif

# A clean environment has none of the machine's settings, so the ones we rely on are made here.
export UV_SYSTEM_CERTS := true
export UV_NO_CONFIG := true
export UV_PYTHON_DOWNLOADS := never
export GOTOOLCHAIN := local
export GOFLAGS := -buildvcs=false
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

PACKAGES := packages/base packages/bigfleet packages/providerkit
EDITABLE := $(foreach p,$(PACKAGES),-e $(p))
PYPROJECTS := $(PACKAGES:=/pyproject.toml)

##@ Everyday

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(READY) ## Create .venv from requirements.lock (other targets do it when needed)

$(READY): requirements.lock requirements-uv.lock $(PYPROJECTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else "BigFleet needs Python 3.11 or newer; $(PYTHON) is %d.%d. Try: make PYTHON=python3.11 $(MAKECMDGOALS)" % v)'
	@echo "creating $(VENV) from requirements.lock"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-uv.lock
	@$(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@$(BIN)/uv pip install --quiet --no-deps --no-build-isolation $(EDITABLE)
	@echo "$(CURDIR)" > $@

.PHONY: demo
demo: $(READY) ## Run a shard, a provider and three clusters here, and watch (ARGS="--headless --for 20s --output json")
	@$(BIN)/python -m bigfleet.cli.demo $(ARGS)

.PHONY: test
test: $(READY) ## Run the tests that need only Python (ARGS goes to pytest)
	$(BIN)/pytest --ignore=tests/kube --numprocesses=auto --dist=worksteal $(ARGS)

.PHONY: check
check: $(READY) ## Lint, format, types, import contracts, generated files, rules with tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy packages tests tools bench
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/python tools/generate.py --check
	$(BIN)/python tools/draw_states.py --check
	$(MAKE) --no-print-directory rules ARGS=

.PHONY: format
format: $(READY) ## Format the code and fix what the linter can fix
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

.PHONY: rules
rules: $(READY) ## Show which rules of the specification have a test (ARGS=engine names those without)
	$(BIN)/python -m tests.support.rules_report $(ARGS)

.PHONY: mutants
mutants: $(READY) ## Plant named bugs in the engine and see each of them caught
	$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: differential
differential: $(READY) ## Judge the engine by the oracle over random fleets (ARGS="--from 0 --fleets 1000000")
	$(BIN)/python -m tests.engine.differential $(ARGS)

.PHONY: conformance
conformance: $(READY) ## Say whether a provider is BigFleet-compatible (TARGET=localhost:9001, ARGS="--profile core,cloud")
	@test -n "$(TARGET)" || { echo "make conformance needs TARGET=host:port"; exit 2; }
	$(BIN)/bigfleet-conformance --target $(TARGET) $(ARGS)

.PHONY: conformance-self
conformance-self: $(READY) ## The same for the fake that comes with the kit
	$(BIN)/bigfleet-conformance --profile core,cloud,spot $(ARGS) \
	  --provider-cmd "$(BIN)/bigfleet-fake-provider --addr {addr} --state {state} --seed-count {seed_count} --metrics-addr 0"

.PHONY: conformance-wrong
conformance-wrong: $(READY) ## Show every check red for a provider that is wrong on purpose (ARGS=--full: all against all)
	$(BIN)/python -m tests.wrong_providers.table $(ARGS)

.PHONY: bench
bench: bench-engine bench-provider bench-shard ## Run every benchmark

.PHONY: bench-engine
bench-engine: $(READY) ## Time the decision engine on the specification's shapes, counts checked first
	$(BIN)/python bench/engine.py $(ARGS)

.PHONY: growth
growth: $(READY) ## Measure how a cycle's cost grows and draw docs/engine-growth.svg (an hour)
	$(BIN)/python bench/growth.py $(ARGS)

.PHONY: bench-provider
bench-provider: $(READY) ## Time durable provider calls, counts checked first
	$(BIN)/python -m bench.provider $(ARGS)

.PHONY: bench-shard
bench-shard: $(READY) ## Put a shard under load: sessions, roll-ups, machines (ARGS=--small takes minutes)
	$(BIN)/python -m bench.shard $(ARGS)

##@ With the real parts

.PHONY: tools
tools: ## Build etcd, Kubernetes and kwok from the Go module proxy (once; kept in the user's cache)
	$(PYTHON) tools/build.py

.PHONY: test-kube
test-kube: $(READY) tools ## Run the tests that need the real parts (ARGS goes to pytest)
	$(BIN)/pytest tests/kube $(ARGS)

.PHONY: nightly
nightly: $(READY) tools ## Run every test at full size
	$(BIN)/pytest --full-size $(ARGS)

##@ Maintenance

.PHONY: generate
generate: $(READY) ## Regenerate the stubs and the drawn documentation
	$(BIN)/python tools/generate.py
	$(BIN)/python tools/draw_states.py

.PHONY: vectors
vectors: ## Reprint the reference vectors from the Kubernetes library (needs Go)
	cd tools/vectors && go run . -out ../../tests/unit/base/model/vectors

.PHONY: lock
lock: ## Recompute requirements.lock (LOCK_ARGS=--upgrade takes the newest versions)
	@test -x $(BIN)/uv || { $(PYTHON) -m venv $(VENV); $(BIN)/python -m pip install --quiet uv; }
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate $(LOCK_ARGS) \
	  --python-version 3.11 --no-emit-package bigfleet-base \
	  --group pyproject.toml:dev $(PACKAGES:=/pyproject.toml) -o requirements.lock
	printf 'uv==%s\n' "$$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)" \
	  | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 - -o requirements-uv.lock

.PHONY: clean
clean: ## Remove .venv and everything generated outside git
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
