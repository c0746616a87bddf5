# Everything a person needs: `make demo` and `make test`. Each target makes and reuses .venv by itself.
# PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check e2e storm truth bench lock clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# --no-deps: the lock is whole. Resolving, pip before 23.3 meets pytest-cov's "coverage[toml]" before the pin
# of "coverage" and takes the newest.
$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "versionedconfig needs Python 3.11 or newer; name one with: make PYTHON=python3.12 …" >&2; exit 2; }
	@rm -f $(READY)
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "python -m venv failed; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

demo: $(READY) ## The fault and whom it hits, the protection and a VersionedConfig on a real cluster (KEEP=1 leaves it up)
	@$(BIN)/python -m e2e.demo $(if $(KEEP),--keep)

test: check e2e ## All that must hold: check, then the end-to-end scenarios

check: $(READY) ## Lint, types, import directions and the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest tests --cov --cov-report=term

e2e: $(READY) ## The scenarios on the local cluster (or on KUBECONFIG)
	$(BIN)/python -m e2e.cluster build
	$(BIN)/pytest e2e --timeout 300 -n auto --dist loadfile --no-loadscope-reorder

storm: $(READY) ## The random storm and sequences at full length, and the crashes; prints the seed that replays it (E2E_SEED)
	$(BIN)/python -m e2e.cluster build
	E2E_STORM=2000 E2E_CRASHES=20 E2E_SEQUENCES=200 \
	  $(BIN)/pytest e2e/scenarios/test_storm.py e2e/scenarios/test_crashes.py e2e/scenarios/test_sequences.py --timeout 300 -s

truth: $(READY) ## Random histories of reused names, in a model and on real kubelets: what is said of each pod, and what it reads
	VERSIONEDCONFIG_HISTORIES=10000 $(BIN)/pytest tests/staleness --timeout 3600
	$(BIN)/python -m e2e.cluster build
	E2E_TRUTH=300 $(BIN)/pytest e2e/scenarios/test_truth.py --timeout 300 -s

bench: $(READY) ## Speed and memory, each as a ratio to a floor measured in the same run
	$(BIN)/python -m e2e.bench

lock: $(READY) ## Write the lock files anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url --group pyproject.toml:dev pyproject.toml -o requirements-dev.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	  --no-emit-index-url -c requirements-dev.lock pyproject.toml -o requirements.lock

clean: ## End every local cluster of this user and remove the virtual environment
	-@$(BIN)/python -m e2e.cluster down --all
	rm -rf $(VENV)
