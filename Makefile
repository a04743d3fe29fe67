# Everything runs in .venv of this clone, which `install` makes; needed before: Python 3.11 with
# venv and headers, make, a C/C++ compiler, git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The same with Spark: five times the size.
WHOLE := $(VENV)/.whole
# What Java starts sooner with, for the tests.
CLASSES := build/spark-classes.jsa
PROTO := $(shell find proto -name '*.proto')
CORE := txbroker/core/compiled.pyx $(wildcard txbroker/core/native/*)
# Test files run side by side: most of them wait for nodes more than they work.
WORKERS ?= 3
# Lock files in the order of their installation: Spark is built with what dev.txt has.
LOCKS := dev
# `only`: a registry whose files have other hashes is no place to install from.
LOCKED ?=
comma := ,
PYTEST_ARGS ?=
FAULTS_ARGS ?=
FUZZ_ARGS ?=
SOAK_ARGS ?=
BENCH_ARGS ?=

# Where it is set, each node would compile all its modules anew: 0.4 s of a start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install home pipeline test test-pure bench bench-quick faults soak lock wheels sdist release test-wheels test-debian13 test-arm64 fuzz lint types format proto clean

install: $(STAMP)

NEEDED := setup.cfg setup.py pyproject.toml $(PROTO) $(CORE) $(wildcard requirements/*.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation

$(STAMP): $(NEEDED)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# Only files whose hashes were locked; what builds is among them, so nothing else is fetched.
	if (for lock in $(LOCKS); do $(PIP) --require-hashes -r requirements/$$lock.txt || exit; done); then \
	    $(PIP) --no-deps -e .; \
	else \
	    test '$(LOCKED)' != only || exit; \
	    echo 'requirements/: other files than the locked ones; the ranges of setup.cfg count (LOCKED=only refuses that)' >&2; \
	    $(BIN)/python -m pip install --quiet -e '.[$(subst $(eval ) ,$(comma),$(LOCKS))]'; \
	fi
	$(BIN)/python -m compileall -q txbroker
	@# Twisted writes its list of plug-ins when it first looks: once here, not in six nodes at a time.
	$(BIN)/python -c 'from twisted.plugin import IPlugin, getPlugins; list(getPlugins(IPlugin))'
	touch $@

$(WHOLE): $(NEEDED)
	@echo 'installing Spark and what goes with it: some minutes, the first time'
	$(MAKE) --always-make LOCKS='dev pipeline' $(STAMP)
	touch $@

$(CLASSES): tests/support/java_classes.py | $(WHOLE)
	$(BIN)/python -m tests.support.java_classes

home: install
	$(BIN)/python examples/home_topology/run.py $(if $(SECONDS),--seconds $(SECONDS))

# Readings of a real house where they are there, else made-up ones.
READINGS ?= $(wildcard $(or $(TXBROKER_DATA),../shared/data)/home-9-rooms/energydata_complete.csv)

pipeline: $(WHOLE)
	$(BIN)/python examples/home_topology/pipeline.py --seconds $(or $(SECONDS),30) \
		$(if $(READINGS),--csv $(READINGS))

test: $(WHOLE) $(CLASSES)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# The same with the core's reference in Python.
test-pure: $(WHOLE) $(CLASSES)
	TXBROKER_PURE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Beside Mosquitto and nats-server, which Debian's packages bring; minutes. Writes docs/performance.md.
bench: install build/load
	$(BIN)/python -m benchmarks --write $(BENCH_ARGS)

# Some of it, once, within a minute.
bench-quick: install build/load
	$(BIN)/python -m benchmarks --quick --runs 1 --seconds 0.7 $(BENCH_ARGS)

build/load: $(wildcard benchmarks/load/*)
	mkdir -p build
	$(CXX) -std=c++17 -O3 -Wall -Wextra -o $@ $(filter %.cpp,$^)

# Random faults until the time is over or a promise is broken; the seed is printed then.
faults: install
	$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),5) $(FAULTS_ARGS)

# Clients that come and go, and what nodes keep of them; with faults beside it: SOAK_ARGS=--faults.
# For memory once all caches are full: SOAK_ARGS="--visits 100000 --rests 3 --clients 100".
soak: install
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) $(SOAK_ARGS)

# requirements/*.txt anew from setup.cfg and pyproject.toml; LOCK_ARGS=--upgrade for newest versions.
LOCK_ARGS ?=

lock:
	test -x build/lock/bin/uv || $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check 'uv >= 0.13.9, < 0.14'
	build/lock/bin/python release/lock.py $(LOCK_ARGS)

# In dist/, for each of these Pythons; for 64-bit ARM too where Debian's g++-aarch64-linux-gnu is.
PYTHONS ?=

wheels:
	tests/machines/wheels.sh $(PYTHONS)

# In dist/, what the repository has.
sdist:
	test -x build/sdist/bin/python || $(PYTHON) -m venv build/sdist
	build/sdist/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
		-r requirements/release.txt
	build/sdist/bin/python -m build --sdist --no-isolation -o dist .

# A release of HEAD, VERSION=1.2.3: built, checked, committed and tagged; CONTRIBUTING.md has the rest.
release:
	$(PYTHON) release/make.py '$(VERSION)' '$(PYTHONS)'

# On other machines, as root: wheels of Debian's releases, built and run for both processors; Debian 13
# with its Python; 64-bit ARM under qemu.
RELEASES ?=

test-wheels:
	tests/machines/test-wheels.sh $(RELEASES)

test-debian13:
	tests/machines/debian13.sh

test-arm64:
	tests/machines/arm64.sh

# The compiled core with sanitizers, against its reference, until something is found or the time is
# over; INPUT=file tries one input again.
fuzz: install
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) $(if $(INPUT),--input $(INPUT)) $(FUZZ_ARGS)

lint: install
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(WHOLE)
	$(BIN)/python -m mypy

format: install
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

proto: install
	$(BIN)/python setup.py --quiet build_proto

clean:
	rm -rf $(VENV) build dist *.egg-info txbroker/v1 twisted/plugins/dropin.cache
	rm -f txbroker/core/compiled.*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find txbroker twisted tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
