# The commands of this project. `make run` shows it, `make test` is what CI runs.

SHELL := /bin/bash
CARGO ?= cargo
RELEASE := target/release

# Rounds of each soak test in `make soak`; in `make test` the same tests run a short, seeded slice.
SOAK_ROUNDS ?= 1000

.PHONY: run test soak bench fmt lint deny setup build

# One command in a sandbox of its own, then what to try next.
run: build
	$(RELEASE)/cabana run -- sh -c 'echo "Hello from a sandbox: $$(id -un) on $$(uname -n), process $$$$, $$(ls /proc | grep -c "^[0-9]") processes in sight"'
	@echo
	@echo 'That was one sandbox: made, used and gone. Try next:'
	@echo '  $(RELEASE)/cabana run                                    a shell with a terminal of its own'
	@echo '  $(RELEASE)/cabana run --timeout 2s -- sleep 60           a timeout that ends the whole tree'
	@echo '  $(RELEASE)/cabana run --mount .:/src:ro -- ls /src       a directory of yours, read-only'
	@echo '  $(RELEASE)/cabana doctor                                 what this host can enforce, and what not'
	@echo '  README.md                                             the tour'

# Everything that must hold. Each step stops the rest.
test: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(MAKE) --no-print-directory deny
	$(CARGO) nextest run --workspace --locked --profile ci
	$(CARGO) test --workspace --locked --doc --quiet
	$(CARGO) build --locked --bin cabana
	scripts/readme target/debug

# The tests whose name says `soak`, at full length.
soak: setup
	CABANA_SOAK_ROUNDS=$(SOAK_ROUNDS) $(CARGO) nextest run --workspace --locked --profile soak -E 'test(soak)'

# Figures beside their floors and peers, measured in one run: target/bench/report.json and a picture.
bench: setup build
	$(CARGO) run --locked --release -p cabana-bench

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# Licences, sources and banned crates; deny.toml says why. Advisories where their database can be had.
deny:
	$(CARGO) deny --log-level error check bans licenses sources
	scripts/advisories

# What the tests need on this machine.
setup:
	@scripts/setup

build:
	$(CARGO) build --locked --release -p cabana --bin cabana
