# `make verify` is what a change must pass; it never writes a tracked file. `make fix` does.

CARGO ?= cargo

.PHONY: verify fmt clippy docs deny test chaos sim sim-mutants fix demo dev ci reference

verify: fmt clippy docs deny test

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

# cargo-deny is not everywhere; what it guards most (no aws-lc, no OpenSSL) is checked without it as well.
deny:
	@if $(CARGO) deny --version >/dev/null 2>&1; then \
	  $(CARGO) deny --locked check bans licenses sources; \
	else \
	  echo "cargo-deny is not installed: checking the banned crates only"; \
	fi
	@for crate in aws-lc-rs aws-lc-sys openssl-sys native-tls; do \
	  if grep -q "^name = \"$$crate\"$$" Cargo.lock; then echo "$$crate is in Cargo.lock"; exit 1; fi; \
	done

test:
	$(CARGO) test --workspace --locked

# Half an hour of kills, stops and partitions under load: as root, with iproute2. `make chaos CHAOS_SECONDS=300 SEED=1` for less.
# `TOWLINE_PREVIOUS=/path/to/towline make chaos` begins with a rolling upgrade from that binary.
CHAOS_SECONDS ?= 1800

chaos:
	$(CARGO) test --workspace --locked --no-run
	$(if $(TOWLINE_PREVIOUS),$(CARGO) test --workspace --locked --test cluster upgrade)
	target/debug/towline-chaos --seconds $(CHAOS_SECONDS) $(if $(SEED),--seed $(SEED))

# Fresh seeds of the simulation, and those that failed before. `make sim N=200` for more, `make sim SEED=7` for one and its log.
N ?= 50

sim:
	$(CARGO) test --workspace --locked --no-run
	target/debug/towline-simulation $(if $(SEED),run $(SEED) --log target/simulation/$(SEED).log,many --count $(N))

# Switches on one bug after the other: the simulation has to find each. The product is never built with them.
sim-mutants:
	$(CARGO) build --package towline-simulation --features mutants --locked --target-dir target/mutants
	target/mutants/debug/towline-simulation mutants $(if $(MUTANT),--only $(MUTANT))

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# The manual pages and the reference of the configuration, from the code.
reference:
	TOWLINE_WRITE_REFERENCE=1 $(CARGO) test --workspace --locked --lib reference_page
	TOWLINE_WRITE_REFERENCE=1 $(CARGO) test --workspace --locked --lib manual

demo:
	$(CARGO) run --release --locked -- demo

dev:
	$(CARGO) run --locked -- dev

ci:
	bash .ci/run
