# Everything a developer runs. Each target sets up what it needs, so the first command on a fresh machine may be any of
# them; what is there already is not made again. Machines need cargo, Python 3.11 or later, make and the registries.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# The Python of the virtual environment. It runs the scripts, too: they need nothing but its standard library.
PYTHON ?= python3
CARGO_FLAGS := --release --locked
# Further arguments, as in `make test PYTEST_FLAGS="-k resume"`.
PYTEST_FLAGS ?=
# Processes that run Python tests, each of them whole files; 0 for this one alone.
PYTEST_JOBS ?= 2
# Arguments of benches/python/run.py, as in `make bench BENCH_FLAGS="--only tokens text"`.
BENCH_FLAGS ?= --write-docs
# Arguments of benches/python/faults.py, as in `make bench-faults FAULTS_FLAGS="--readers forebay --only 503"`.
FAULTS_FLAGS ?= --write-docs
MINUTES ?= 30
# Seconds for each fuzz target, and which of them: all by default.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=

BIN := .venv/bin
REQUIREMENTS := python/requirements
CORPUS := .cache/corpus
SITE := target/site
PYTHON_SOURCES := python/forebay scripts examples benches/python tests/python
TYPED_SOURCES := $(wildcard python/forebay) scripts examples benches/python

UV := $(shell uv --version >/dev/null 2>&1 && echo uv || echo .venv-uv/bin/uv)
COMPILE := $(UV) --directory python pip compile --quiet --upgrade --universal --no-annotate \
	--custom-compile-command "make lock"
# uv does not read pip's settings.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

SAY := @printf '==> %s\n'

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: demo
demo: ext $(CORPUS)/.complete ## Build a corpus from real source files and train on it: filter, shuffle, stop, resume
	$(SAY) "demo: a filtered, shuffled epoch from $(CORPUS), stopped and resumed"
	@$(BIN)/python examples/demo.py $(CORPUS)

.PHONY: test
test: ext services datasets-env ## Run all Rust and Python tests, with the servers of `make services`
	$(SAY) "test: Rust and Python, with the stores' servers"
	@$(PYTHON) scripts/s3_server.py run -- $(MAKE) --no-print-directory test-rust test-python

.PHONY: test-rust
test-rust: ## Run the Rust tests alone
	@cargo test $(CARGO_FLAGS) --workspace

.PHONY: test-python
test-python: ext ## Run the Python tests alone
	@$(BIN)/python -m pytest -c python/pyproject.toml --rootdir . --numprocesses $(PYTEST_JOBS) --dist loadfile \
		tests/python $(PYTEST_FLAGS)

.PHONY: fuzz
fuzz: ## Fuzz everything that parses foreign bytes, FUZZ_SECONDS each
	@$(PYTHON) scripts/fuzz.py run --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: asan
asan: ## Run unit tests of the core and of the allocator with AddressSanitizer
	@$(PYTHON) scripts/fuzz.py asan

.PHONY: audit
audit: .venv-audit/done ## Check what is linked and installed: licences, sources, and known vulnerabilities, which needs a network
	@$(PYTHON) scripts/audit.py --advisories

# An incremental build is optimised less.
.PHONY: bench
bench: export CARGO_INCREMENTAL := 0
bench: .venv/bench .venv-duckdb/done .venv-mosaicml/done ## Measure Forebay beside other readers and write docs/benchmarks.md
	$(SAY) "bench: Rust"
	@cargo bench --locked --workspace
	$(SAY) "bench: Python, beside other loaders"
	@$(MAKE) --no-print-directory ext
	@$(BIN)/python benches/python/run.py $(BENCH_FLAGS)

.PHONY: bench-faults
bench-faults: ext s3-env .venv/bench .venv-mosaicml/done ## Send Forebay and other readers through faults and write the table of docs/reliability.md
	$(SAY) "bench-faults: every row once, or what else"
	@$(BIN)/python benches/python/faults.py $(FAULTS_FLAGS)

.PHONY: soak
soak: ext s3-env ## Read for MINUTES (30) through random faults and kills, with every row accounted for
	$(SAY) "soak: $(MINUTES) minutes"
	@$(BIN)/python benches/python/soak.py --minutes $(MINUTES)

.PHONY: storms
storms: ext ## Read through a minute of refusals, and through a slow tail
	$(SAY) "storms: every row, few requests, nearly the usual speed"
	@$(BIN)/python benches/python/storms.py

.PHONY: bench-env
bench-env: .venv/bench .venv-duckdb/done .venv-mosaicml/done ## Install the readers that are measured, and measure nothing

.PHONY: lint
lint: ext ## Check formatting, lints and types of all code
	$(SAY) "lint: rustfmt and clippy"
	@cargo fmt --all --check
	@cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@$(PYTHON) scripts/audit.py
	$(SAY) "lint: ruff and mypy"
	@$(BIN)/ruff check --config python/pyproject.toml $(PYTHON_SOURCES)
	@$(BIN)/ruff format --check --config python/pyproject.toml $(PYTHON_SOURCES)
	@$(BIN)/ruff check --config python/pyproject.toml docs
	@$(BIN)/ruff format --check --config python/pyproject.toml --line-length 88 docs
	@$(BIN)/mypy --config-file python/pyproject.toml $(TYPED_SOURCES)
	@$(BIN)/stubtest --concise --mypy-config-file python/pyproject.toml forebay._lib

.PHONY: format
format: .venv/dev ## Format all code
	@cargo fmt --all
	@$(BIN)/ruff check --config python/pyproject.toml --fix $(PYTHON_SOURCES)
	@$(BIN)/ruff format --config python/pyproject.toml $(PYTHON_SOURCES)
	@$(BIN)/ruff format --config python/pyproject.toml --line-length 88 docs

.PHONY: docs
docs: site ## Build all documentation: the site and the Rust documentation
	$(SAY) "docs: rustdoc"
	@RUSTDOCFLAGS="-D warnings" cargo doc $(CARGO_FLAGS) --no-deps --workspace
	@echo "The site is $(SITE)/index.html; open it in a browser."

# It imports the package, so that the reference is that of the code.
.PHONY: site
site: ext .venv/docs ## Build the pages and the Python reference into target/site, and check all links
	$(SAY) "docs: links between the files"
	@$(PYTHON) scripts/check_links.py
	$(SAY) "docs: site"
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env -j auto -d target/site-doctrees docs $(SITE)
	@echo "$(SITE)/index.html"

.PHONY: ext
ext: .venv/dev ## Build the extension into .venv
	$(SAY) "building the extension (the first time on a machine: DataFusion, up to half an hour on two cores)"
	@cd python && PATH="$(CURDIR)/.venv-uv/bin:$$PATH" VIRTUAL_ENV="$(CURDIR)/.venv" \
		"$(CURDIR)/$(BIN)/maturin" develop --uv $(CARGO_FLAGS)

.PHONY: services
services: s3-env azure-env ## Install the servers of stores that the tests start: S3, and Azure where there is npm
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || echo "make: no nginx: ITS TESTS ARE SKIPPED (apt-get install nginx-light)" >&2

.PHONY: azure-env
azure-env:
	@$(PYTHON) scripts/azurite.py install || { \
		[ -z "$${CI:-}" ] || ! command -v npm >/dev/null || exit 1; echo "make: THE TESTS THAT NEED AZURE ARE SKIPPED" >&2; }

.PHONY: s3-env
s3-env: .venv/dev ## Install the S3 server of the tests into .venv-s3
	@$(PYTHON) scripts/s3_server.py install --uv $(UV) || { \
		[ -z "$${CI:-}" ] || exit 1; echo "make: going on without the S3 server" >&2; }

.PHONY: datasets-env
datasets-env: .venv-datasets/done ## Install the oldest `datasets` that is supported into .venv-datasets, for the tests

.PHONY: wheel
wheel: .venv/dev ## Build a wheel for others into target/wheels
	@$(BIN)/maturin build $(CARGO_FLAGS) --manifest-path python/Cargo.toml

.PHONY: lock
lock: .venv/dev ## Update the pinned versions of all Python packages
	@$(COMPILE) pyproject.toml --group dev --output-file requirements/dev.txt
	@$(COMPILE) pyproject.toml --group bench --constraints requirements/dev.txt --output-file requirements/bench.txt
	@$(COMPILE) pyproject.toml --group docs --constraints requirements/dev.txt --output-file requirements/docs.txt
	@$(COMPILE) requirements/mosaicml.in --overrides requirements/overrides.txt --output-file requirements/mosaicml.txt
	@$(COMPILE) requirements/datasets.in --output-file requirements/datasets.txt
	@$(COMPILE) requirements/s3-server.in --python-version 3.13 --output-file requirements/s3-server.txt
	@$(COMPILE) requirements/audit.in --output-file requirements/audit.txt

# Stamps: files in the environments that tell what these hold. Packages are compiled when they are installed, because the
# tests start many processes, and where Python may not write bytecode each would compile torch anew: 8 seconds.

.venv/dev: $(REQUIREMENTS)/dev.txt | $(filter-out uv,$(UV))
	$(SAY) "setting up .venv from $<"
	@[ -x $(BIN)/python ] || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv -r $<
	@touch $@

.venv/bench: $(REQUIREMENTS)/bench.txt .venv/dev
	$(SAY) "adding the loaders that are measured: $<"
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv -r $<
	@touch $@

.venv/docs: $(REQUIREMENTS)/docs.txt .venv/dev
	$(SAY) "adding the generator of the site: $<"
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv -r $<
	@touch $@

# An older DuckDB than that of the tests: the newest whose extension for stores can be had from a package registry.
.venv-duckdb/done: $(REQUIREMENTS)/duckdb-httpfs.txt .venv/dev
	$(SAY) "setting up .venv-duckdb from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-duckdb
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-duckdb -r $<
	@touch $@

# The tests have the newest datasets that is supported; this is the oldest.
.venv-datasets/done: $(REQUIREMENTS)/datasets.txt .venv/dev
	$(SAY) "setting up .venv-datasets from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-datasets
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-datasets -r $<
	@touch $@

# MosaicML's loader cannot be installed beside the datasets of the tests.
.venv-mosaicml/done: $(REQUIREMENTS)/mosaicml.txt .venv/dev
	$(SAY) "setting up .venv-mosaicml from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-mosaicml
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-mosaicml -r $<
	@touch $@

# It shares nothing with what it checks.
.venv-audit/done: $(REQUIREMENTS)/audit.txt | $(filter-out uv,$(UV))
	$(SAY) "setting up .venv-audit from $<"
	@$(UV) venv --quiet --clear --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" .venv-audit
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-audit -r $<
	@touch $@

.venv-uv/bin/uv:
	$(SAY) "installing uv into .venv-uv"
	@$(PYTHON) -m venv .venv-uv
	@.venv-uv/bin/pip install --quiet 'uv>=0.9'

$(CORPUS)/.complete: scripts/build_corpus.py Cargo.lock .venv/dev
	$(SAY) "writing the corpus of the demo into $(CORPUS)"
	@$(BIN)/python scripts/build_corpus.py $(CORPUS)
	@touch $@
