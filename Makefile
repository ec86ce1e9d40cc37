# `make` alone lists the targets. Everything is installed into $(VENV); nothing outside the repository is touched.
# PYTHON=python3.12 chooses the interpreter, UV= makes pip do what uv would do where it is found.

PYTHON ?= python3
VENV ?= .venv
UV ?= $(shell command -v uv 2>/dev/null)
CARGO ?= cargo
PYTEST_ARGS ?=

# Make splits names at spaces: targets are relative, so that the repository's own path may have some.
$(if $(word 2,$(VENV)),$(error VENV: expected a path without spaces, got "$(VENV)"; choose another))
venv := $(if $(filter /%,$(VENV)),,$(CURDIR)/)$(VENV)
py := $(venv)/bin/python
stamps := $(VENV)/.stamps
# Sources of the installed package. Python sources are used in place and need no rebuild.
sources := pyproject.toml Cargo.toml $(wildcard Cargo.lock) \
	$(shell find crates/rlox-core crates/rlox-grpc crates/rlox-nn crates/rlox-python -name '*.rs' -o -name Cargo.toml)
train_extras := cli,progress,plot
test_extras := torch,$(train_extras),arrow,minari,classic-control,test
lint_extras := $(test_extras),lint
service_extras := $(test_extras),tensorboard,wandb,mlflow,video,onnx,ray

# Without the extension (after a git clean) what was installed does not count.
ifeq ($(wildcard python/rlox/_rlox.*.so),)
$(shell rm -f '$(stamps)/train' '$(stamps)/test' '$(stamps)/lint' '$(stamps)/extras')
endif

# PyO3 asks an interpreter how to build; the base one stays the same when the environment is made anew.
export PYO3_PYTHON := $(shell command -v $(PYTHON))
# maturin installs into VIRTUAL_ENV, and rejects to choose when a conda environment is active too.
develop = env -u CONDA_PREFIX VIRTUAL_ENV="$(venv)" PATH="$(venv)/bin:$(if $(UV),$(dir $(UV)):)$$PATH" \
	"$(venv)/bin/maturin" develop $(if $(UV),--uv)

.DEFAULT_GOAL := help
.PHONY: help train test test-rust test-python test-all test-debug test-processes test-distributed test-kills test-hostile test-build test-slow test-services test-backends test-backends-rust lint format docs licences bench bench-quick wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(stamps)/venv:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "rlox needs Python 3.10 or newer; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@command -v "$(CARGO)" >/dev/null || { echo "rlox is built from Rust source and needs cargo (https://rustup.rs)" >&2; exit 1; }
	@"$(PYTHON)" -m venv "$(venv)" || { rm -rf "$(venv)"; $(if $(UV),"$(UV)" venv --seed --python "$(PYTHON)" "$(venv)",\
		echo "the venv module of $(PYTHON) does not work here; on Debian: apt install python3-venv" >&2; exit 1); }
	"$(py)" -m pip install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
	@mkdir -p $(stamps) && touch $@

$(stamps)/train: $(stamps)/venv $(sources)
	$(develop) --release --extras $(train_extras)
	@touch $@

$(stamps)/test: $(stamps)/venv $(sources)
	$(develop) --release --extras $(test_extras)
	@touch $(stamps)/train $@

$(stamps)/lint: $(stamps)/venv $(sources)
	$(develop) --release --extras $(lint_extras)
	@touch $(stamps)/train $(stamps)/test $@

train: $(stamps)/train ## install rlox into .venv and train PPO on CartPole-v1
	"$(py)" examples/python/train_cartpole.py

test: test-rust test-python ## run the default tests: unit tests and one smoke test of each other kind

# The features of a dependency depend on all selected packages, and Cargo compiles the dependency again for other
# features. All targets use one of two selections, with the profile of the extension.
crates := --workspace --exclude rlox-candle --exclude rlox-burn --exclude rlox-bench --exclude rlox-python
backend_crates := -p rlox-candle -p rlox-burn -p rlox-bench -p rlox-python \
	--features rlox-python/grpc,rlox-python/candle,rlox-python/burn
test-rust: $(stamps)/venv
	$(CARGO) test --release $(crates)

# Markers of the tests that `make test` leaves out; pyproject.toml has the same list for `pytest` alone.
markers := processes distributed kills hostile services build
empty :=
space := $(empty) $(empty)
marked := $(subst $(space), or ,$(strip $(markers)))
not_default := slow or $(marked)
# pytest exits with 5 if PYTEST_ARGS, for example the name of one file, select no test of a run.
may_be_empty = $(if $(PYTEST_ARGS),|| [ $$? -eq 5 ])
test-python: $(stamps)/test
	"$(py)" -m pytest -n 2 --dist loadfile -m "not (serial or $(not_default))" $(PYTEST_ARGS) $(may_be_empty)
	"$(py)" -m pytest -n 0 -m "serial and not ($(not_default))" $(PYTEST_ARGS) $(may_be_empty)

# A part that has passed leaves a stamp, so that test-all continues where it failed. A changed file undoes all stamps.
parts := default debug backends $(markers) slow
passed := $(addprefix $(stamps)/passed-,$(parts))
tested = $(wildcard $(shell git ls-files 2>/dev/null))
.NOTPARALLEL:
test-all: $(passed) ## run all tests, part by part; continues after the last part that passed
	@rm -f $(passed)

# The Python tests of one marker.
test-processes test-distributed test-kills test-hostile test-build: test-%: $(stamps)/test
	"$(py)" -m pytest $(if $(filter processes kills hostile,$*),-n 2) -m "$* and not serial" --timeout 3600 $(PYTEST_ARGS) $(may_be_empty)
	$(if $(filter processes distributed,$*),"$(py)" -m pytest -n 0 -m "$* and serial" --timeout 3600 $(PYTEST_ARGS) $(may_be_empty))

# Release builds do not check arithmetic for overflow. Dependencies keep their settings, so that Cargo does not compile
# them again.
checks = $(foreach setting,overflow-checks=true debug-assertions=true opt-level=1,--config profile.release.$(setting)) \
	$(foreach setting,overflow-checks=false debug-assertions=false opt-level=3,--config 'profile.release.package."*".$(setting)')
test-debug:
	$(CARGO) test --release $(crates) --tests $(checks)

# RLOX_TEST_SEEDS="1 2 3 4 5" trains with these seeds instead of the default ones of the scores.
test-slow: $(stamps)/test ## run the tests marked slow: training to a score, peers, millions of sines
	$(CARGO) test --release $(crates) --tests -- --ignored
	$(CARGO) test --release $(backend_crates) --tests -- --ignored
	"$(py)" -m pytest -n 2 --dist worksteal -m "slow and not (serial or $(marked))" --timeout 3600 $(PYTEST_ARGS) $(may_be_empty)
	"$(py)" -m pytest -n 0 -m "slow and serial and not ($(marked))" --timeout 3600 $(PYTEST_ARGS) $(may_be_empty)

$(passed): $(stamps)/passed-%: $(tested)
	$(MAKE) $(if $(filter default,$*),test,test-$*)
	@touch $@

# These packages number about a hundred, and no other target needs them. rliable fails with pandas 3.
$(stamps)/extras: $(stamps)/test
	$(develop) --release --extras $(service_extras)
	"$(py)" -m pip install --quiet --disable-pip-version-check onnxruntime 'gymnasium[mujoco]' rliable 'pandas<3'
	@touch $@

test-services: $(stamps)/extras ## test what needs TensorBoard, W&B, MLflow, ONNX, moviepy, MuJoCo, Ray or rliable
	"$(py)" -m pytest -m services --timeout 600 $(PYTEST_ARGS) $(may_be_empty)

test-backends-rust: ## test the crates rlox-candle, rlox-burn and rlox-bench
	$(CARGO) test --release $(backend_crates)

# The extension with Candle and Burn replaces the usual one until the next target that needs the usual one.
test-backends: $(stamps)/test test-backends-rust ## test rlox-candle and rlox-burn, and learners on them in Python
	$(develop) --release --extras $(test_extras) --features pyo3/abi3-py310,grpc,candle,burn
	@rm -f $(stamps)/train $(stamps)/test $(stamps)/lint $(stamps)/extras
	"$(py)" -m pytest -n 2 --dist loadfile -m "not serial" -k "candle or burn or backend" $(PYTEST_ARGS) $(may_be_empty)
	"$(py)" -m pytest -n 0 -m serial -k "candle or burn or backend" $(PYTEST_ARGS) $(may_be_empty)

lint: $(stamps)/lint ## words, formatting, clippy, ruff, mypy --strict, stubtest
	"$(py)" .ci/words.py
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p rlox-python --features candle,burn,grpc -- -D warnings
	"$(py)" -m ruff format --check .
	"$(py)" -m ruff check .
	"$(py)" -m mypy
	"$(py)" -m mypy.stubtest rlox._rlox

format: $(stamps)/lint ## format Rust and Python sources, write tables of settings
	$(CARGO) fmt --all
	"$(py)" -m ruff format .
	"$(py)" -m ruff check --fix .
	"$(py)" .ci/settings_tables.py

docs: ## build the Rust documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

licences: $(stamps)/train ## check the licences of everything rlox depends on
	"$(py)" -m doctest .ci/licences.py
	"$(py)" .ci/licences.py

# As for test-backends, the next target that needs the usual extension builds it again.
bench: $(stamps)/test ## measure rlox against its peers (installs them in environments of their own)
	$(CARGO) bench -p rlox-bench --bench nn_backends --no-run
	$(CARGO) bench -p rlox-grpc --no-run
	$(develop) --profile dist --extras $(test_extras) --features pyo3/abi3-py310,grpc,candle,burn
	@rm -f $(stamps)/train $(stamps)/test $(stamps)/lint $(stamps)/extras
	"$(py)" benches/python/make_peers.py
	"$(py)" benches/python/run_all.py

bench-quick: $(stamps)/test ## compile and briefly run our own benchmarks
	$(CARGO) test --release --benches -p rlox-bench -p rlox-grpc
	"$(py)" benches/python/run_all.py --quick --no-peers

wheel: $(stamps)/venv ## build a wheel into dist/ and check it in an empty environment
	"$(py)" .ci/wheel.py

clean: ## remove the environment and everything built
	rm -rf "$(venv)" target dist benches/python/.peers
