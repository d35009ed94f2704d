# The commands of this project. `make run` shows it, `make test` is what CI runs.

SHELL := /bin/bash
CARGO ?= cargo
RELEASE := target/release

# Rounds of each soak test in `make soak`; in `make test` the same tests run a short, seeded slice.
SOAK_ROUNDS ?= 1000

# Tests wait more than they compute: three at a time keep two processors busy.
TEST_THREADS ?= $(shell echo $$(( $$(nproc) + $$(nproc) / 2 )))

# Seconds for each target in `make fuzz`; in `make test` each gets a few.
FUZZ_SECONDS ?= 300

.PHONY: run test test-e2b soak fuzz bench fmt lint deny setup build

# A server on its embedded default: it prints its address, its key and a first thing to try. Ctrl-C ends it, and what it made
# is there again the next time.
run: build
	$(RELEASE)/cabana serve --show-key

# Everything that must hold. Each step stops the rest.
test: setup
	$(MAKE) --no-print-directory lint deny
	$(CARGO) nextest run --workspace --locked --profile ci --test-threads $(TEST_THREADS)
	$(CARGO) test --workspace --locked --doc --quiet
	$(CARGO) build --locked --bin cabana
	scripts/readme target/debug
	scripts/fuzz

# The official Python SDK's own tests: make test-e2b SUITE=…/packages/python-sdk [SDK=2.63.0] [WAY=plain]
test-e2b: setup
	$(CARGO) build --locked --bin cabana
	scripts/test-e2b "$(SUITE)" $(or $(SDK),2.45.1) $(or $(WAY),domain)

# The tests whose name says `soak`, at full length.
soak: setup
	CABANA_SOAK_ROUNDS=$(SOAK_ROUNDS) $(CARGO) nextest run --workspace --locked --profile soak -E 'test(soak)'

# What strangers send, thrown at what reads it, for as long as FUZZ_SECONDS says: fuzz/.
fuzz: setup
	FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

# Figures beside their floors and peers, measured in one run: target/bench/report.json and a picture.
bench: setup build
	$(CARGO) run --locked --release -p cabana-bench

fmt:
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Licences, sources and banned crates; deny.toml says why. Advisories where their database can be had.
deny:
	$(CARGO) deny --log-level error check bans licenses sources
	$(CARGO) deny --log-level error --manifest-path fuzz/Cargo.toml --config deny.toml check bans licenses sources
	scripts/advisories

# What the tests need on this machine.
setup:
	@scripts/setup

build:
	$(CARGO) build --locked --release -p cabana --bin cabana
