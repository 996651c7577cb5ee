# make demo | make test | make simulate: each first installs its needs into .venv.
# make help lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Package index for torch, if not the default one: for example the index of
# CPU-only builds.
TORCH_INDEX ?=
# Address of the repository, for the metadata of released packages.
SOURCE ?=
ARGS ?=
PYTEST_ARGS ?=
# nproc reads OMP_NUM_THREADS as the number of processors, and newer versions of make pass it the value
# that is exported below.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
# Processes for tests that each start a swarm: these wait half of the time, so two of them use two
# processors.
SWARMS ?= $(shell echo $$(( $(JOBS) < 4 ? $(JOBS) : $(JOBS) / 2 )))
# Debian packages that the tests of `make test-hosts` need.
HOSTS_NEED := openssh-server openssh-client iproute2 nftables util-linux slurm-wlm munge
# Unit tests that start no process and load neither a trainer nor a launcher.
BEYOND_QUICK := gossip\.(training|launch|testing|node|integrations|run|ipc)\b|gossip_(lab|clusters)|gossip_pipelines\.(plan|stages|starts)|^import gossip$$|subprocess|code_blocks|examples|catalogue
QUICK = $(shell grep -LE '$(BEYOND_QUICK)' tests/unit/test_*.py)
# Number of fault schedules in `make test`; `make simulate` plays 2,000.
SCHEDULES ?= 12

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Tests of one process run on every processor. Tests that start peers run on every second one
# if there are many; the longest begin first, and idle workers take over tests of
# others. Tests on a virtual clock run beside those that start peers, on the remaining processor
# time: swarms wait half of the time.
BRIEF := $(wildcard tests/test_*.py) tests/unit
VIRTUAL := tests/property tests/simulation
ALONE := $(BRIEF) $(VIRTUAL)
TOGETHER := tests/fault tests/integration
YIELDING := nice -n 19
SOURCES := gossip aggregators topologies launch extras tests examples benchmarks docs

# One thread per process: several processes with one thread per core are hundreds of times slower
# than with one thread each.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
# If it is set, each process that runs tests or starts peers compiles all tests and gossip again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo quick test test-adapters test-virtual test-swarms test-long test-hosts campaign simulate frames folders lint words format types pyright screenshots bench robustness package release-check clean mutants test-examples docs

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12  VENV=.venv  TORCH_INDEX=<url>  JOBS=2  TEST_LONG=1  ARGS='--peers 4'  PYTEST_ARGS='-k rolling'"

venv: $(INSTALLED)  ## create .venv with the tested versions of all packages

# torch comes first and pinned, so that no other package can install a different one (a few GiB of CUDA
# libraries on some indexes).
$(INSTALLED): pyproject.toml extras/lab/pyproject.toml extras/clusters/pyproject.toml extras/pipelines/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gossip needs Python 3.11 or newer, $(PYTHON) is " \
	  + sys.version.split()[0] + ". Set another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable 'extras/lab[records]' --editable extras/clusters --editable extras/pipelines
	# Tests compare our rules with byzfl. Its dependencies for plots and training are omitted: torchvision would install its own torch.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps byzfl
	@touch $@

demo: $(INSTALLED)  ## eight peers, two of them Byzantine, and a killed server; ARGS is passed to `gossip demo`
	$(BIN)/gossip demo $(ARGS)

quick: $(INSTALLED)  ## run the tests of the core, rules, faults and codec (less than a minute)
	$(BIN)/ruff check
	$(BIN)/python -m pytest -q --numprocesses $(JOBS) $(QUICK)

test: lint $(INSTALLED)  ## run all checks of a change: lint, types, tests
ifdef PYTEST_ARGS
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)
else
	@echo "expensive tests run a part of their cases; make test-long runs all their seeds, sizes and examples"
	$(BIN)/python -m pytest -q --durations=5 --numprocesses $(JOBS) --dist loadgroup $(BRIEF)
	@echo "types, simulations and swarms in parallel: each output is shown at its end"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-virtual test-swarms
endif

# Parts of `make test`, which starts both at once.
test-virtual: $(INSTALLED)
	$(YIELDING) $(BIN)/mypy
	$(YIELDING) $(BIN)/python -m pytest -q --durations=5 --numprocesses $(JOBS) --dist loadgroup $(VIRTUAL)
	$(YIELDING) $(BIN)/gossip simulate --seeds $(SCHEDULES) --jobs $(JOBS)

test-swarms: $(INSTALLED)
	$(BIN)/python -m pytest -q --durations=5 --numprocesses $(SWARMS) --dist worksteal -m 'not adapters and not ray and not slurm and not ssh' $(TOGETHER)

test-long: $(INSTALLED)  ## run the same tests with all their seeds, sizes and examples (ten more minutes on four processors)
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 --numprocesses $(JOBS) --dist loadgroup $(PYTEST_ARGS) $(ALONE)
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 --numprocesses $(SWARMS) --dist worksteal $(PYTEST_ARGS) $(TOGETHER)

# Only root may install packages, and only this target does.
test-hosts: $(INSTALLED)  ## run tests over real ssh, Slurm and Ray between network namespaces (root), more of them with TEST_LONG=1; installs missing packages with apt-get and pip
	@if [ -x /usr/sbin/sshd ] && (for tool in ssh ip nft nsenter slurmctld munged; do command -v $$tool >/dev/null || exit 1; done); then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(HOSTS_NEED) with apt-get"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(HOSTS_NEED); \
	else echo "these tests need sshd, ssh, ip, nft, nsenter, slurmctld and munged: install $(HOSTS_NEED) as root"; fi
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	$(BIN)/python -m pytest -q -m 'ray or ssh or slurm' $(PYTEST_ARGS) tests/fault

test-examples: $(INSTALLED)  ## run each example from a clean wheel; GOSSIP_TEST_DATA=FOLDER has mnist.npz
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 $(PYTEST_ARGS) tests/integration/test_examples_from_a_wheel.py

test-adapters: $(INSTALLED)  ## run tests of gossip.integrations and of engines for sweeps with the real libraries, which it installs; ten fault plans each with TEST_LONG=1
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lightning,transformers,accelerate]' --editable 'extras/lab[optuna,dask,ray]'
	$(BIN)/python -m pytest -q -m adapters $(PYTEST_ARGS) tests/fault

campaign: lint types test-long simulate frames folders mutants  ## run all long checks: test-long, 2,000 schedules, every mutant (hours)

mutants: $(INSTALLED)  ## plant protocol faults and search for them in the simulator, up to 2,000 schedules each (hours)
	$(BIN)/python tests/mutants/hunt.py --jobs $(JOBS) $(ARGS)

frames: $(INSTALLED)  ## send 2,000,000 hostile frames to all readers of remote bytes (ten minutes); ARGS='--count 20000' for fewer
	$(BIN)/python tests/frames/hostile.py $(ARGS)

folders: $(INSTALLED)  ## read 200,000 tampered run folders with eight commands (hours); ARGS='--count 3000 --only report,top' for fewer
	$(BIN)/python tests/folders/mutate.py $(ARGS)

simulate: $(INSTALLED)  ## play 2,000 fault schedules on a virtual clock; ARGS='--seeds 100' for fewer
	$(BIN)/gossip simulate --seeds 2000 --jobs $(JOBS) $(ARGS)

words: $(INSTALLED)  ## list sentences in code and docs that break a rule of our English; ARGS='gossip/core --show 50'
	$(BIN)/python tests/words.py $(ARGS)

lint: $(INSTALLED)  ## check style and formatting (ruff), and the order of imports between packages
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff format --check $(SOURCES)

format: $(INSTALLED)  ## format and fix the sources with ruff
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

types: $(INSTALLED)  ## run mypy --strict on gossip, benchmarks and the mutant hunt
	$(BIN)/mypy

pyright: $(INSTALLED)  ## run pyright (needs node, which it downloads if missing, so it is not part of `make test`)
	$(BIN)/pyright

# For a real run, into docs/: make screenshots ARGS='--docs docs runs/NAME'.
# For the terminal, into docs/: make screenshots TERMINAL_ARGS='--docs docs'.
screenshots: $(INSTALLED)  ## take pictures of the report in headless Chromium, light and dark, narrow and wide, and of the terminal at 80, 120 and 200 columns; fails if a text is cut (CHROMIUM=path)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt playwright pyte
	$(BIN)/python tests/screenshots/take.py $(ARGS)
	$(BIN)/python tests/screenshots/terminal_pictures.py $(TERMINAL_ARGS)

bench: $(INSTALLED)  ## measure steps per second, compared with PyTorch DDP over gloo
	$(BIN)/gossip bench step $(ARGS)

# Processors round sums differently, which decides a cell if training diverges:
# torch, MKL and OpenBLAS use instructions that nearly all processors have, so that the page depends on the
# machine as little as possible.
robustness: export ATEN_CPU_CAPABILITY ?= avx2
robustness: export MKL_CBWR ?= COMPATIBLE
robustness: export OPENBLAS_CORETYPE ?= Haswell
robustness: $(INSTALLED)  ## run every rule under every attack, for docs/results/robustness.md (an hour of one processor; resumes after Ctrl-C)
	$(BIN)/gossip bench robustness --n 10 --f 2 --rounds 50 --seeds 5 --jobs $(JOBS) --out docs/results/robustness.md $(ARGS)

docs: $(INSTALLED)  ## build the site of docs/ and README.md in site/; fails if a link is broken
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

package: $(INSTALLED)  ## build sdist and wheel of each package in dist/, from the last commit; SOURCE=ADDRESS of the repository for an upload
	rm -rf dist
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build
	$(BIN)/python tests/release/packages.py --source '$(SOURCE)'

# torch and its dependencies stay in .release, with a folder for each Python.
release-check: $(INSTALLED)  ## check a fresh clone, built and installed for each Python: demo, quick tests, links, metadata and licences (a quarter of an hour); SOURCE as for package
	TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python tests/release/check.py --source '$(SOURCE)' $(ARGS)

clean:  ## remove .venv, caches and build outputs; keeps runs/
	rm -rf $(VENV) .release build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
