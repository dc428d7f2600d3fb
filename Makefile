# Every target sets up what it needs; what is set up already is left alone.  `make clean` starts over.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Without bytecode on disk, every process of a test or of the demo would compile what another has compiled.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Where torch comes from when the plain install brought a build for GPUs.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# More arguments for pytest, for example `make test PYTEST_ARGS="-k ladder -x"`.
PYTEST_ARGS ?=
# Processes that run tests: most of them wait for others most of the time.  1 for one after the other, as a debugger wants it.
PYTEST_PROCESSES ?= 5
# Of these, that `make test-all` starts real engines with: most of their tests have two engines, and each wants a whole core.
ENGINE_PROCESSES ?= 2
# What to measure, for example `make bench BENCH_ARGS="--only lookup --rounds 5"`; everything without.
BENCH_ARGS ?=

DISTRIBUTIONS := core $(patsubst %/pyproject.toml,%,$(wildcard libs/*/pyproject.toml plugins/*/pyproject.toml engines/*/pyproject.toml))
empty :=
export MYPYPATH := $(subst $(empty) ,:,$(DISTRIBUTIONS:%=%/src))
TYPED := $(DISTRIBUTIONS:%=%/src) $(wildcard $(DISTRIBUTIONS:%=%/tests)) benchmarks demo scripts tests

# Compiled, and so a wheel that is built again when its sources change; every other distribution is editable.
NATIVE := libs/native
NATIVE_SOURCES := $(shell find $(NATIVE) -path $(NATIVE)/build -prune -o -path $(NATIVE)/tests -prune -o -type f -not -name "*.pyc" -print)

# What the engine's environment has of ours, beside the public package.
OWN := libs/blend_select libs/client libs/kv_identity libs/kv_layout engines/vllm
# What an engine has that opens its cache in its own process, in an environment without the public package.
IN_PROCESS := core engines/local libs/blend_index libs/fleet libs/l2_adapter libs/object_files libs/object_remote plugins/blend plugins/fleet_member \
  plugins/l2_fs plugins/l2_fs_native plugins/l2_redis plugins/p2p plugins/policies
# What SGLang's environment has of ours.
SGLANG_OWN := libs/client libs/kv_identity engines/sglang
# And in the one without the public package, for a cache in SGLang's own process.
SGLANG_IN_PROCESS := core engines/local libs/kv_layout libs/l2_adapter libs/object_files plugins/l2_fs plugins/policies
# Tests of one file stay together: they share servers and engines; engines are with two processes (tests/engine_processes.py).
side_by_side = $(if $(filter-out 1,$(1)),-n $(1) --dist loadfile --no-loadscope-reorder)

# What the demo's server is made of.
DEMO_OWN := libs/client libs/http core libs/l2_adapter libs/object_files plugins/admin plugins/l2_fs

DEMO_READY := .venv/.demo
PROJECT_READY := .venv/.ready
NATIVE_READY := .venv/.native
ENGINE_READY := .venv-engine/.ready
ENGINE_OWN := .venv-engine/.own
SGLANG_READY := .venv-sglang/.ready
SGLANG_ENGINE := .venv-sglang/.own
SGLANG_IN_PROCESS_READY := .venv-sglang-in-process/.ready
IN_PROCESS_READY := .venv-in-process/.ready
DOCS_READY := .venv-docs/.ready
ENGINE_TESTS := .venv-engine/.tests
SYSTEM_READY := .venv/.system
MODEL := demo/.model/model.safetensors

.PHONY: help setup setup-sglang demo test compiled retest test-all test-sglang bench check docs size wheels clean

help:
	@echo "make setup     the project in .venv, and a real engine (vLLM on the CPU) in .venv-engine and .venv-in-process"
	@echo "make demo      a real engine with this cache: cold, from memory, shared, and from disk after a crash"
	@echo "make test      the checks, and all tests but the slow ones"
	@echo "make retest    the tests that failed last, one after the other"
	@echo "make test-all  the checks and all tests, the public server beside ours included"
	@echo "make test-sglang  the tests with a real SGLang on the CPU, in .venv-sglang; make setup-sglang installs it"
	@echo "make bench     this server beside the public one, in turns: tables and plots for docs/internals/benchmarks.md"
	@echo "make check     ruff, mypy and the import rules"
	@echo "make docs      the documentation as a site, with search, in site"
	@echo "make size      how large each distribution is, and what it brings: docs/internals/size.md"
	@echo "make wheels    lmcache-native for other machines, one wheel for each Python here, in dist"
	@echo "make clean     remove the environments, the demo's model and all caches of tools"

setup: $(PROJECT_READY) $(NATIVE_READY) $(ENGINE_READY) $(ENGINE_OWN) $(ENGINE_TESTS) $(IN_PROCESS_READY) $(MODEL) $(SYSTEM_READY)

setup-sglang: $(SGLANG_ENGINE) $(SGLANG_IN_PROCESS_READY)

demo:
	@$(MAKE) --silent --jobs 2 $(DEMO_READY) $(MODEL)
	@.venv/bin/python -m demo.demo

test: setup
	@$(MAKE) --no-print-directory --jobs 2 check compiled
	.venv/bin/python -m pytest -m "not slow" $(call side_by_side,$(PYTEST_PROCESSES)) $(PYTEST_ARGS)

# At most a hundred, one after the other: a test that waits for others may fail where five processes share two cores.
retest:
	@.venv/bin/python -c "import json; failed = json.load(open('.pytest_cache/v/cache/lastfailed')); \
		print('failed beside others, run once more alone:', *failed, sep='\n  '); raise SystemExit(len(failed) > 100)"
	.venv/bin/python -m pytest -v -m "not slow" --last-failed --last-failed-no-failures none

test-all: setup check docs
	@.venv/bin/python -m scripts.system_packages --slow
	engines=0; .venv/bin/python -m pytest -m "engine and alone" $(PYTEST_ARGS) || engines=$$?; \
	.venv/bin/python -m pytest -m "engine and not alone" $(call side_by_side,$(ENGINE_PROCESSES)) $(PYTEST_ARGS) || engines=$$?; \
	.venv/bin/python -m pytest -m "not engine" $(call side_by_side,$(PYTEST_PROCESSES)) $(PYTEST_ARGS) && exit $$engines

test-sglang: $(PROJECT_READY) $(NATIVE_READY) $(SGLANG_ENGINE) $(SGLANG_IN_PROCESS_READY) $(MODEL)
	.venv/bin/python -m pytest -m sglang $(PYTEST_ARGS)

bench: $(PROJECT_READY) $(NATIVE_READY) $(ENGINE_READY) $(ENGINE_OWN) $(ENGINE_TESTS)
	@.venv/bin/python -m benchmarks $(BENCH_ARGS)

check: $(PROJECT_READY)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(TYPED)
	.venv/bin/python -m scripts.import_rules

# mypy has one core; on the other the tests are compiled once, and not by each process that runs them.
compiled: $(PROJECT_READY) $(NATIVE_READY)
	@.venv/bin/python -m pytest --collect-only -qq -p no:cacheprovider > /dev/null 2>&1 || true  # what cannot be collected is said by the run

docs: $(DOCS_READY)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

size: $(PROJECT_READY)
	@.venv/bin/python -m scripts.size | tee docs/internals/size.md

wheels:
	@$(PYTHON) -m scripts.build_wheels dist

clean:
	rm -rf .venv .venv-engine .venv-in-process .venv-sglang .venv-sglang-in-process .venv-docs site $(NATIVE)/build demo/.model .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The versions are those of the developers' environment; devkit is there for its free ports, without what its suites require.
$(DEMO_READY): requirements-dev.txt $(DEMO_OWN:%=%/pyproject.toml)
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	@.venv/bin/python -m scripts.pip_progress "server" -c requirements-dev.txt hatchling editables
	@.venv/bin/python -m scripts.pip_progress "server" --no-build-isolation -c requirements-dev.txt $(DEMO_OWN:%=-e %)
	@.venv/bin/python -m scripts.pip_progress "server" --no-deps --no-build-isolation -e plugins/devkit
	@touch $@

$(PROJECT_READY): requirements-dev.txt $(DISTRIBUTIONS:%=%/pyproject.toml)
	@test -x .venv/bin/pip || $(PYTHON) -m venv .venv
	@.venv/bin/python -m scripts.pip_progress "project" --no-deps -r requirements-dev.txt
	@.venv/bin/python -m scripts.cpu_torch requirements-dev.txt $(TORCH_INDEX)
	@.venv/bin/python -m scripts.pip_progress "project" --no-deps --no-build-isolation $(patsubst %,-e %,$(filter-out $(NATIVE),$(DISTRIBUTIONS)))
	@touch $@

$(DOCS_READY): requirements-docs.txt
	@test -x .venv-docs/bin/pip || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m scripts.pip_progress "docs" --no-deps -r $<
	@touch $@

$(NATIVE_READY): $(PROJECT_READY) $(NATIVE_SOURCES)
	@.venv/bin/python -m scripts.build_native
	@touch $@

$(SYSTEM_READY): $(PROJECT_READY) scripts/system_packages.py
	@.venv/bin/python -m scripts.system_packages
	@touch $@

# pip would compile all modules; one import compiles those that engines use, which takes a third of the time.
$(ENGINE_READY): demo/requirements-engine.txt
	@test -x .venv-engine/bin/pip || $(PYTHON) -m venv .venv-engine
	@.venv-engine/bin/python -m scripts.pip_progress "engine" --no-compile --no-deps -r $<
	@.venv-engine/bin/python -m scripts.cpu_torch $< $(TORCH_INDEX)
	@DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR .venv-engine/bin/python -c "from vllm import LLM"
	@touch $@

$(SGLANG_READY): demo/requirements-sglang.txt
	@test -x .venv-sglang/bin/pip || $(PYTHON) -m venv .venv-sglang
	@.venv-sglang/bin/python -m scripts.pip_progress "SGLang" --no-compile --no-deps -r $<
	@.venv-sglang/bin/python -m scripts.cpu_torch $< $(TORCH_INDEX)
	@SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/stand_ins .venv-sglang/bin/python -W ignore -c "import sglang.srt.managers.scheduler"
	@touch $@

$(SGLANG_ENGINE): $(SGLANG_READY) $(SGLANG_OWN:%=%/pyproject.toml)
	@.venv-sglang/bin/python -m scripts.pip_progress "SGLang" --no-deps --no-build-isolation $(SGLANG_OWN:%=-e %)
	@touch $@

$(ENGINE_OWN): $(ENGINE_READY) $(OWN:%=%/pyproject.toml)
	@.venv-engine/bin/python -m scripts.pip_progress "engine" --no-deps --no-build-isolation $(OWN:%=-e %)
	@touch $@

$(ENGINE_TESTS): tests/engine/requirements.txt $(ENGINE_OWN) $(NATIVE_READY)
	@.venv-engine/bin/python -m scripts.pip_progress "engine" --no-compile --no-deps -r $<
	@for wheel in .venv/wheels/lmcache_native-*.whl; do test ! -e "$$wheel" || \
		.venv-engine/bin/python -m scripts.pip_progress "engine" --no-deps --force-reinstall "$$wheel"; done
	@touch $@

# The engine's environment by hard links: nothing is installed twice, and what pip replaces is replaced here alone.
$(IN_PROCESS_READY): $(ENGINE_TESTS) $(IN_PROCESS:%=%/pyproject.toml)
	@rm -rf .venv-in-process && cp -al .venv-engine .venv-in-process
	@.venv-in-process/bin/python -m pip uninstall --quiet --yes lmcache
	@.venv-in-process/bin/python -m scripts.pip_progress "in-process" --no-deps -c requirements-dev.txt pluggy stevedore xxhash
	@.venv-in-process/bin/python -m scripts.pip_progress "in-process" --no-deps --no-build-isolation $(IN_PROCESS:%=-e %)
	@touch $@

$(SGLANG_IN_PROCESS_READY): $(SGLANG_ENGINE) $(SGLANG_IN_PROCESS:%=%/pyproject.toml)
	@rm -rf .venv-sglang-in-process && cp -al .venv-sglang .venv-sglang-in-process && rm -f $@
	@.venv-sglang-in-process/bin/python -m pip uninstall --quiet --yes lmcache
	@.venv-sglang-in-process/bin/python -m scripts.pip_progress "SGLang in-process" --no-deps -c requirements-dev.txt pydantic-settings python-dotenv stevedore xxhash
	@.venv-sglang-in-process/bin/python -m scripts.pip_progress "SGLang in-process" --no-deps --no-build-isolation $(SGLANG_IN_PROCESS:%=-e %)
	@touch $@

$(MODEL): demo/make_model.py demo/tiny-llama.json $(ENGINE_READY)
	@.venv-engine/bin/python demo/make_model.py demo/tiny-llama.json $(@D)
