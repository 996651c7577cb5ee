# make demo | make test | make simulate: each installs what it needs into .venv first.
# make help lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# Where torch comes from when the default package index is not what you want, such as the index of
# CPU-only builds.
TORCH_INDEX ?=
# Address of the repository, which the packages of a release name.
SOURCE ?=
ARGS ?=
PYTEST_ARGS ?=
# nproc takes OMP_NUM_THREADS for the number of processors, and newer makes hand it what is
# exported below.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc)
# Of tests that start a swarm each: they wait half of their time, so two of them keep two
# processors busy.
SWARMS ?= $(shell echo $$(( $(JOBS) < 4 ? $(JOBS) : $(JOBS) / 2 )))
# What the tests of `make test-hosts` need of Debian's packages.
HOSTS_NEED := openssh-server openssh-client iproute2 nftables util-linux slurm-wlm munge
# Unit tests that start no process and load neither a trainer nor a launcher.
BEYOND_QUICK := gossip\.(training|launch|testing|node|integrations|run|ipc)\b|gossip_(lab|clusters)|gossip_pipelines\.(plan|stages|starts)|^import gossip$$|subprocess|code_blocks|examples
QUICK = $(shell grep -LE '$(BEYOND_QUICK)' tests/unit/test_*.py)
# How many fault schedules `make test` plays; `make simulate` plays 2,000.
SCHEDULES ?= 12

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Tests that need one process each run on every processor, those that start peers on every other
# where there are many; the longest begin first, and who has nothing left takes of what others
# have. What knows no real time runs beside those that start peers, and takes what these leave of
# the processors, which wait for each other half of their time.
BRIEF := $(wildcard tests/test_*.py) tests/unit
VIRTUAL := tests/property tests/simulation
ALONE := $(BRIEF) $(VIRTUAL)
TOGETHER := tests/fault tests/integration
YIELDING := nice -n 19
SOURCES := gossip aggregators topologies launch extras tests examples benchmarks docs

# One thread a process: several processes with a thread a core each are slower than one thread
# each by a factor of hundreds.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE
# Where it is set, each process that runs tests or starts peers compiles all of them, and us, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo quick test test-adapters test-virtual test-swarms test-long test-hosts campaign simulate frames folders lint words format types pyright screenshots bench robustness package release-check clean mutants test-examples docs

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12  VENV=.venv  TORCH_INDEX=<url>  JOBS=2  TEST_LONG=1  ARGS='--peers 4'  PYTEST_ARGS='-k rolling'"

venv: $(INSTALLED)  ## make .venv with the tested versions of everything

# torch first and pinned, so that no other package can pull in another one (a few GiB of CUDA
# libraries on some indexes).
$(INSTALLED): pyproject.toml extras/lab/pyproject.toml extras/clusters/pyproject.toml extras/pipelines/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "gossip needs Python 3.11 or newer, $(PYTHON) is " \
	  + sys.version.split()[0] + ". Give another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]' --editable 'extras/lab[records]' --editable extras/clusters --editable extras/pipelines
	# What tests compare our rules with; without what it needs for plots and training (torchvision among it, which wants a torch of its own).
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps byzfl
	@touch $@

demo: $(INSTALLED)  ## eight peers, two liars, a killed server; ARGS is passed on to `gossip demo`
	$(BIN)/gossip demo $(ARGS)

quick: $(INSTALLED)  ## tests of the core, the rules, the faults and the codec: less than a minute
	$(BIN)/ruff check
	$(BIN)/python -m pytest -q --numprocesses $(JOBS) $(QUICK)

test: lint $(INSTALLED)  ## all that a change must pass: lint, types, tests
ifdef PYTEST_ARGS
	$(BIN)/mypy
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)
else
	@echo "the dear tests do what every change needs; make test-long gives them all their seeds, sizes and examples"
	$(BIN)/python -m pytest -q --durations=5 --numprocesses $(JOBS) --dist loadgroup $(BRIEF)
	@echo "types, simulations and swarms at once: each is shown when it has ended"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-virtual test-swarms
endif

# Of `make test`, which starts both at once.
test-virtual: $(INSTALLED)
	$(YIELDING) $(BIN)/mypy
	$(YIELDING) $(BIN)/python -m pytest -q --durations=5 --numprocesses $(JOBS) --dist loadgroup $(VIRTUAL)
	$(YIELDING) $(BIN)/gossip simulate --seeds $(SCHEDULES) --jobs $(JOBS)

test-swarms: $(INSTALLED)
	$(BIN)/python -m pytest -q --durations=5 --numprocesses $(SWARMS) --dist worksteal -m 'not adapters and not ray and not slurm and not ssh' $(TOGETHER)

test-long: $(INSTALLED)  ## the same tests with all their seeds, sizes and examples (ten minutes of four processors more)
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 --numprocesses $(JOBS) --dist loadgroup $(PYTEST_ARGS) $(ALONE)
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 --numprocesses $(SWARMS) --dist worksteal $(PYTEST_ARGS) $(TOGETHER)

# Only root may install packages, and only this target does.
test-hosts: $(INSTALLED)  ## tests over real ssh, Slurm and Ray between network namespaces (root), more of them with TEST_LONG=1; installs what is missing with apt-get and pip
	@if [ -x /usr/sbin/sshd ] && (for tool in ssh ip nft nsenter slurmctld munged; do command -v $$tool >/dev/null || exit 1; done); then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(HOSTS_NEED) with apt-get"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(HOSTS_NEED); \
	else echo "these tests need sshd, ssh, ip, nft, nsenter, slurmctld and munged: install $(HOSTS_NEED) as root"; fi
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	$(BIN)/python -m pytest -q -m 'ray or ssh or slurm' $(PYTEST_ARGS) tests/fault

test-examples: $(INSTALLED)  ## each example from a clean wheel; GOSSIP_TEST_DATA=FOLDER has mnist.npz
	TEST_LONG=1 $(BIN)/python -m pytest -q --durations=20 $(PYTEST_ARGS) tests/integration/test_examples_from_a_wheel.py

test-adapters: $(INSTALLED)  ## tests of gossip.integrations and of engines for sweeps with the real libraries, which it installs; ten fault plans each with TEST_LONG=1
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lightning,transformers,accelerate]' --editable 'extras/lab[optuna,dask,ray]'
	$(BIN)/python -m pytest -q -m adapters $(PYTEST_ARGS) tests/fault

campaign: lint types test-long simulate frames folders mutants  ## what a night is for: test-long, 2,000 schedules, every mutant (hours)

mutants: $(INSTALLED)  ## plant protocol faults and let the simulator find them, up to 2,000 schedules each (hours)
	$(BIN)/python tests/mutants/hunt.py --jobs $(JOBS) $(ARGS)

frames: $(INSTALLED)  ## 2,000,000 hostile frames for all that reads bytes of others (ten minutes); ARGS='--count 20000' for fewer
	$(BIN)/python tests/frames/hostile.py $(ARGS)

folders: $(INSTALLED)  ## 200,000 tampered run folders, read by eight commands (hours); ARGS='--count 3000 --only report,top' for fewer
	$(BIN)/python tests/folders/mutate.py $(ARGS)

simulate: $(INSTALLED)  ## 2,000 fault schedules on a virtual clock; ARGS='--seeds 100' for fewer
	$(BIN)/gossip simulate --seeds 2000 --jobs $(JOBS) $(ARGS)

words: $(INSTALLED)  ## sentences of code and docs that break a rule of our English; ARGS='gossip/core --show 50'
	$(BIN)/python tests/words.py $(ARGS)

lint: $(INSTALLED)  ## ruff, style and formatting; who imports whom
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/ruff format --check $(SOURCES)

format: $(INSTALLED)  ## let ruff format and fix
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

types: $(INSTALLED)  ## mypy --strict, of gossip, benchmarks and the mutant hunt
	$(BIN)/mypy

pyright: $(INSTALLED)  ## pyright (needs node; not part of `make test`, because without one it downloads one)
	$(BIN)/pyright

# Of a real run and into docs/: make screenshots ARGS='--docs docs runs/NAME'.
# Of the terminal and into docs/: make screenshots TERMINAL_ARGS='--docs docs'.
screenshots: $(INSTALLED)  ## the report in headless Chromium, light and dark, narrow and wide, and the terminal at 80, 120 and 200 columns; fails where a text is cut (CHROMIUM=path)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt playwright pyte
	$(BIN)/python tests/screenshots/take.py $(ARGS)
	$(BIN)/python tests/screenshots/terminal_pictures.py $(TERMINAL_ARGS)

bench: $(INSTALLED)  ## steps per second against PyTorch DDP over gloo
	$(BIN)/gossip bench step $(ARGS)

# Each processor rounds sums in its own way, and where training diverges that decides a cell:
# torch, MKL and OpenBLAS take what nearly all have in common, for a page that depends on the
# machine as little as may be.
robustness: export ATEN_CPU_CAPABILITY ?= avx2
robustness: export MKL_CBWR ?= COMPATIBLE
robustness: export OPENBLAS_CORETYPE ?= Haswell
robustness: $(INSTALLED)  ## every rule under every attack, into docs/results/robustness.md (an hour of one processor; Ctrl-C and go on)
	$(BIN)/gossip bench robustness --n 10 --f 2 --rounds 50 --seeds 5 --jobs $(JOBS) --out docs/results/robustness.md $(ARGS)

docs: $(INSTALLED)  ## the site of docs/ and README.md into site/; fails where a link leads nowhere
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

package: $(INSTALLED)  ## sdist and wheel of each package into dist/, of what is committed; SOURCE=ADDRESS of the repository for an upload
	rm -rf dist
	$(BIN)/python -m pip install --quiet --constraint constraints.txt build
	$(BIN)/python tests/release/packages.py --source '$(SOURCE)'

# torch and what it needs stay in .release, a folder for each Python.
release-check: $(INSTALLED)  ## a fresh clone, built and installed for each Python, with demo, quick tests, links, metadata and licences (a quarter of an hour); SOURCE as for package
	TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python tests/release/check.py --source '$(SOURCE)' $(ARGS)

clean:  ## remove .venv, caches and build outputs; keeps runs/
	rm -rf $(VENV) .release build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
