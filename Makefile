# `make` alone prints what there is. Every target makes its own .venv first.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
REPLICAS ?= 1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo serve test test-fast torture simulate mutants lint bench secrets docker clean

help: ## Show this help
	@echo "Terrine: private teachers vote, students learn, the ledger keeps count."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'ARGS="..." is passed on by demo, serve, test, test-fast and torture, for example: make demo ARGS=--quick'
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 or newer).'
	@echo 'TORCH="..." is what pip is asked for as PyTorch. On Linux the usual wheel brings CUDA, several'
	@echo '  gigabytes; without a GPU, name the CPU index from the install page of pytorch.org:'
	@echo '  make venv TORCH="$(TORCH) --index-url INDEX"'

venv: $(INSTALLED) ## Install Terrine and its tools into .venv

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Terrine needs Python 3.11 or newer, this is %d.%d. Try: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

demo: venv ## Watch the whole job: teachers, server, student, budget spent (ARGS=--quick: < 2 minutes)
	$(BIN)/terrine demo $(ARGS)

serve: venv ## Make ./terrine-data if it is not there, then serve on http://127.0.0.1:8000 (REPLICAS=3)
	$(BIN)/terrine init
	$(BIN)/terrine serve --workers $(REPLICAS) $(ARGS)

test: venv ## Run every test, two at a time (ARGS="-n 0": one)
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

test-fast: venv ## Run the quick tests of every room, within 90 seconds: no server, no PostgreSQL
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow and not docker' $(ARGS)

torture: venv ## Kill servers and databases 1,000 times under load, then audit (ARGS="--seed N")
	$(BIN)/pytest tests/torture --kills 1000 $(ARGS)

simulate: venv ## Simulate servers, failures and clients around a real ledger (ARGS="--operations N --seed S")
	$(BIN)/python tests/simulation/run.py $(ARGS)

mutants: venv ## Alter the privacy and charging code, one place at a time: hours (ARGS="NAME.*": some)
	$(BIN)/pip install --quiet --editable '.[mutants]'
	$(BIN)/python tests/mutants/run.py $(ARGS)

lint: venv ## Check style (ruff), types (mypy) and directions (import-linter)
	@failed=0; for check in "ruff check" "ruff format --check" mypy lint-imports; do \
		echo "== $$check"; $(BIN)/$$check || failed=1; done; exit $$failed

bench: venv ## Run each benchmark; each prints its figure and its peer's
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

# The line in .env says where they are, and to docker compose that they are made.
secrets: secrets/db_password secrets/service_password secrets/secret_key ## Make the secrets that docker compose reads
	@grep -qs '^SECRETS_DIR=' .env || { [ -z "$$(tail -c 1 .env 2>/dev/null)" ] || echo; \
		echo SECRETS_DIR=./secrets; } >> .env

# The directory keeps other users of this machine out. The files are readable, since the account
# that reads them inside a container is none of this machine's.
secrets/%:
	@mkdir -p -m 700 secrets
	@$(PYTHON) -c 'import secrets; print(secrets.token_hex(32), end="")' > $@
	@chmod 444 $@
	@echo "made $@: keep a copy of it somewhere safe"

docker: secrets ## Build the image and serve on PostgreSQL with docker compose
	docker compose up --build --detach --wait

clean: ## Remove .venv, build products and caches; data and secrets stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
