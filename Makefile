# Everything a developer runs. Each target sets up what it needs, so any of them may be the first on a fresh machine;
# nothing is made twice. The machine needs cargo, Python 3.11 or later, make and access to the package registries.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

# The Python of the virtual environment. It also runs the scripts that need only the standard library.
PYTHON ?= python3
CARGO_FLAGS := --release --locked
# More arguments for pytest, as in `make test PYTEST_FLAGS="-k resume"`.
PYTEST_FLAGS ?=
# Number of processes that run Python tests, each whole files; 0: no extra processes.
PYTEST_JOBS ?= 2
# Arguments of benches/python/run.py, as in `make bench BENCH_FLAGS="--only tokens text"`.
BENCH_FLAGS ?= --write-docs
# Arguments of benches/python/faults.py, as in `make bench-faults FAULTS_FLAGS="--readers forebay --only 503"`.
FAULTS_FLAGS ?= --write-docs
MINUTES ?= 30
# Seconds for each fuzz target, and which targets: all by default.
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
# uv ignores pip's settings.
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif

SAY := @printf '==> %s\n'

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

.PHONY: demo
demo: ext $(CORPUS)/.complete ## Build everything and a corpus of real source files, train on it, stop and resume exactly
	$(SAY) "demo: a filtered, shuffled epoch from $(CORPUS), stopped and resumed"
	@$(BIN)/python examples/demo.py $(CORPUS)

.PHONY: test
test: ext services datasets-env ## Run all Rust and Python tests, with the store servers of `make services`
	$(SAY) "test: Rust and Python, with the stores' servers"
	@$(PYTHON) scripts/s3_server.py run -- $(MAKE) --no-print-directory test-rust test-python

.PHONY: test-rust
test-rust: ## Run only the Rust tests
	@cargo test $(CARGO_FLAGS) --workspace

.PHONY: test-python
test-python: ext ## Run only the Python tests
	@$(BIN)/python -m pytest -c python/pyproject.toml --rootdir . --numprocesses $(PYTEST_JOBS) --dist loadfile \
		tests/python $(PYTEST_FLAGS)

.PHONY: fuzz
fuzz: ## Fuzz everything that parses untrusted bytes, FUZZ_SECONDS per target
	@$(PYTHON) scripts/fuzz.py run --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: asan
asan: ## Run the unit tests of the core and the allocator with AddressSanitizer
	@$(PYTHON) scripts/fuzz.py asan

.PHONY: audit
audit: .venv-audit/done ## Check licences, sources and known vulnerabilities of all dependencies (needs a network)
	@$(PYTHON) scripts/audit.py --advisories

# Incremental builds are optimised less.
.PHONY: bench
bench: export CARGO_INCREMENTAL := 0
bench: .venv/bench .venv-duckdb/done .venv-mosaicml/done ## Measure Forebay and other readers, and write docs/benchmarks.md
	$(SAY) "bench: Rust"
	@cargo bench --locked --workspace
	$(SAY) "bench: Python, beside other loaders"
	@$(MAKE) --no-print-directory ext
	@$(BIN)/python benches/python/run.py $(BENCH_FLAGS)

.PHONY: bench-faults
bench-faults: ext s3-env .venv/bench .venv-mosaicml/done ## Test Forebay and other readers under faults, and write the table in docs/reliability.md
	$(SAY) "bench-faults: every row once, or what else"
	@$(BIN)/python benches/python/faults.py $(FAULTS_FLAGS)

.PHONY: soak
soak: ext s3-env ## Read for MINUTES (30) under random faults and kills, and account for every row
	$(SAY) "soak: $(MINUTES) minutes"
	@$(BIN)/python benches/python/soak.py --minutes $(MINUTES)

.PHONY: storms
storms: ext ## Read from a store that refuses for a minute, and from one with a slow tail
	$(SAY) "storms: every row, few requests, nearly the usual speed"
	@$(BIN)/python benches/python/storms.py

.PHONY: bench-env
bench-env: .venv/bench .venv-duckdb/done .venv-mosaicml/done ## Only install the readers that `make bench` measures

.PHONY: lint
lint: ext ## Check formatting, lints and types of all code
	$(SAY) "lint: rustfmt and clippy"
	@cargo fmt --all --check
	@cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@cargo clippy $(CARGO_FLAGS) --workspace --lib -- -D warnings --cfg fuzzing
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

# Needs the extension: the reference is generated from the imported package.
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
services: s3-env azure-env ## Install the store servers for the tests: S3, and Azure if there is npm
	@command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || echo "make: no nginx: ITS TESTS ARE SKIPPED (apt-get install nginx-light)" >&2

.PHONY: azure-env
azure-env:
	@$(PYTHON) scripts/azurite.py install || { \
		[ -z "$${CI:-}" ] || ! command -v npm >/dev/null || exit 1; echo "make: THE TESTS THAT NEED AZURE ARE SKIPPED" >&2; }

.PHONY: s3-env
s3-env: .venv/dev ## Install the tests' S3 server into .venv-s3
	@$(PYTHON) scripts/s3_server.py install --uv $(UV) || { \
		[ -z "$${CI:-}" ] || exit 1; echo "make: going on without the S3 server" >&2; }

.PHONY: datasets-env
datasets-env: .venv-datasets/done ## Install the oldest supported `datasets` into .venv-datasets, for the tests

.PHONY: wheel
wheel: .venv/dev ## Build a distributable wheel into target/wheels
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

# Stamps: files in the environments that record what is installed. Packages are compiled to bytecode at installation,
# because the tests start many processes; where Python may not write bytecode, each would take 8 seconds to compile torch.

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

# An older DuckDB than the tests use: the newest whose extension for stores is available from a package registry.
.venv-duckdb/done: $(REQUIREMENTS)/duckdb-httpfs.txt .venv/dev
	$(SAY) "setting up .venv-duckdb from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-duckdb
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-duckdb -r $<
	@touch $@

# The oldest supported datasets; .venv has the newest.
.venv-datasets/done: $(REQUIREMENTS)/datasets.txt .venv/dev
	$(SAY) "setting up .venv-datasets from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-datasets
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-datasets -r $<
	@touch $@

# MosaicML's loader cannot be installed together with the tests' version of datasets.
.venv-mosaicml/done: $(REQUIREMENTS)/mosaicml.txt .venv/dev
	$(SAY) "setting up .venv-mosaicml from $<"
	@$(UV) venv --quiet --clear --python $(BIN)/python .venv-mosaicml
	@$(UV) pip install --quiet --no-deps --compile-bytecode --python .venv-mosaicml -r $<
	@touch $@

# Shares nothing with the environments that it checks.
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
