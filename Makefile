# Two targets are all a newcomer needs: `make demo` and `make test`. Both make .venv by themselves.
# Each install leaves a stamp in .venv, so a second run installs nothing.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
PY      := $(BIN)/python
PIP     := $(PY) -m pip install -qq --disable-pip-version-check -c constraints.txt
CORE    := $(wildcard csrc/*.[ch]pp csrc/*/*.[ch]pp)
SOURCES := $(shell find src -name '*.py' -o -name '*.pyi')

# Prints what an extra needs, read from pyproject.toml: pip never hears the name foresay, which it
# would look for in the index, and does not build the core again. Python 3.10 cannot read toml: there
# pip reads it, at the price of a build.
define NEEDS
import sys
try:
    import tomllib
except ModuleNotFoundError:
    sys.exit(print(f"-e .[{sys.argv[1]}]"))
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
def show(extra):
    for need in extras[extra]:
        show(need[len("foresay["):-1]) if need.startswith("foresay[") else print(need)
show(sys.argv[1])
endef
export NEEDS

# Compiled modules are kept: without them the tests take a third of a minute longer to begin, and each process that they start a second.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint types stub mutants sanitize tsan peers test-clients vllm test-vllm test-verl torch clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

demo: $(VENV)/.core $(VENV)/.engine  ## install, fetch the default model, answer a few prompts without and with drafts
	@$(BIN)/foresay demo

# Two processes: most tests use one core. Each takes one half of the tests in their order, so that those of a file share
# servers and models, and who is done first takes from the other's end.
PYTEST = $(PY) -m pytest --durations=25 -n 2 --dist worksteal

# One thread a process: tiny models are not worth more. Targets are tested with two (tests/models/conftest.py), and so is the
# default model, by the slow tests. The types are checked beside the tests: what is wrong with them is said last, and fails the
# target as well.
test: lint  ## install what the tests need, then lint, type-check and test
	@$(BIN)/mypy src tests > $(VENV)/types.txt & types=$$!; \
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow"; tested=$$?; \
	wait $$types || { cat $(VENV)/types.txt; exit 1; }; exit $$tested

test-slow: $(VENV)/.core $(VENV)/.dev  ## the tests that take long, which CI runs too
	@$(PYTEST) -m slow

lint: $(VENV)/.core $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.core $(VENV)/.dev
	@$(BIN)/mypy src tests

stub: $(VENV)/.core $(VENV)/.dev  ## write src/foresay/_core.pyi again, after a change of csrc/bind/
	@$(PY) -m nanobind.stubgen -q -m foresay._core -o src/foresay/_core.pyi

mutants: $(VENV)/.core $(VENV)/.dev  ## 40 and more mutants of the code in a copy of it: does a test find each?
	@PYTHONPATH=tests $(PY) -m mutants.run $(ARGS)

# Python itself is not built with the sanitizers, so their runtime has to be loaded before it, and
# -S keeps the normal (editable) core from being found first.
SANITIZED = PYTHONPATH="build/$@:$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(PY) -S -m pytest
RUNTIME   = "$$(g++ -print-file-name=$(1)) $$(g++ -print-file-name=libstdc++.so)"

# xdist starts its processes by this command, again with -S. It does not tell how they end: reports are files, and none may be left.
REPORTS = $(CURDIR)/build/sanitize/report
WORKERS = --dist worksteal --tx "2*popen//python=$(PY) -S"

sanitize: $(VENV)/.dev build/sanitize/.stamp  ## test the core, on every level, under the address and undefined-behaviour sanitizers
	@rm -f $(REPORTS).*
	@LD_PRELOAD=$(call RUNTIME,libasan.so) FORESAY_SANITIZE=1 \
	ASAN_OPTIONS=detect_leaks=0:log_path=$(REPORTS) UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1:log_path=$(REPORTS) \
	$(SANITIZED) tests/core $(WORKERS) || { cat $(REPORTS).* 2>/dev/null; exit 1; }
	@! cat $(REPORTS).* 2>/dev/null

# What Python, numpy and libgomp do among themselves is not seen; csrc/threads.cpp says what OpenMP's members may rely on.
tsan: $(VENV)/.dev build/tsan/.stamp  ## test the core's threads under the thread sanitizer
	@LD_PRELOAD=$(call RUNTIME,libtsan.so) FORESAY_SANITIZE=1 \
	TSAN_OPTIONS=halt_on_error=1:history_size=4:ignore_noninstrumented_modules=1 \
	$(SANITIZED) tests/core/test_threads.py

# The peers live in a venv of their own, so that nothing of ours can depend on them. Building them takes
# about 15 minutes on 2 cores; only a change of their script builds them again.
peers: .venv-peers/.foresay  ## build the venv in which foresay is measured against its peers (see benchmarks/)

.venv-peers/.peers: benchmarks/make_peers.sh
	@echo "installing ArcticInference and llama.cpp into .venv-peers"
	@PYTHON=$(PYTHON) sh benchmarks/make_peers.sh .venv-peers
	@touch $@

.venv-peers/.foresay: .venv-peers/.peers build/wheel/.made
	@.venv-peers/bin/python -c "$$NEEDS" engine > .venv-peers/engine.txt
	@.venv-peers/bin/python -m pip install -qq -c .venv-peers/constraints.txt -r .venv-peers/engine.txt
	@.venv-peers/bin/python -m pip install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

# So does vLLM, which takes 3 GB and about 10 minutes. Its tests need the default model, which our own venv fetches.
vllm: .venv-vllm/.foresay

test-vllm: $(VENV)/.core $(VENV)/.engine .venv-vllm/.foresay  ## test inside the real vLLM, in a venv of its own
	@FORESAY_TEST_MODEL="$$($(PY) -c 'from foresay.models.weights import find; print(find("smollm2-135m", convert=True))')" \
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/vllm --confcutdir=tests/vllm --durations=10 -n 2 --dist loadfile

.venv-vllm/.vllm: tests/vllm/make_venv.sh
	@echo "installing vLLM into .venv-vllm"
	@PYTHON=$(PYTHON) sh tests/vllm/make_venv.sh .venv-vllm
	@touch $@

.venv-vllm/.foresay: .venv-vllm/.vllm build/wheel/.made
	@.venv-vllm/bin/python -m pip install -qq --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

# verl stands on that venv: it sees vLLM, torch and foresay there, and adds itself.
test-verl: $(VENV)/.core $(VENV)/.engine .venv-vllm/.foresay .venv-verl/.verl  ## test inside the real verl, in a venv of its own
	@FORESAY_TEST_MODEL="$$($(PY) -c 'from foresay.models.weights import find; print(find("smollm2-135m", convert=True))')" \
	OMP_NUM_THREADS=2 .venv-verl/bin/python -m pytest tests/verl --confcutdir=tests/verl

.venv-verl/.verl: tests/verl/make_venv.sh .venv-vllm/.vllm
	@echo "installing verl into .venv-verl"
	@sh tests/verl/make_venv.sh .venv-verl .venv-vllm
	@touch $@

test-clients: $(VENV)/.core $(VENV)/.dev $(VENV)/.engine .venv-clients/.clients  ## test with other projects' clients, in a venv of their own
	@FORESAY_TEST_PYTHON="$$PWD/$(PY)" \
	FORESAY_TEST_MODEL="$$($(PY) -c 'from foresay.models.weights import find; print(find("smollm2-135m", convert=True))')" \
	.venv-clients/bin/python -m pytest tests/clients --confcutdir=tests/clients

.venv-clients/.clients: tests/clients/make_venv.sh
	@echo "installing the clients into .venv-clients"
	@PYTHON=$(PYTHON) sh tests/clients/make_venv.sh .venv-clients
	@touch $@

torch: $(VENV)/.torch  ## install the torch that the engine is tested with

clean:  ## remove everything that make has made
	@rm -rf $(VENV) .venv-peers .venv-clients .venv-vllm .venv-verl build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.tools: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "foresay needs Python 3.10 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(PY) || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the build tools"
	@$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# Editable, without rebuild on import: only make rebuilds the core. The install knows each module by
# its file, so it is made again when a file comes or goes.
$(VENV)/.files: FORCE | $(VENV)/.tools
	@echo $(sort $(SOURCES)) | cmp -s - $@ || echo $(sort $(SOURCES)) > $@
FORCE:

$(VENV)/.core: $(VENV)/.tools $(VENV)/.files pyproject.toml CMakeLists.txt $(CORE)
	@echo "building the core"
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.engine: pyproject.toml constraints.txt | $(VENV)/.core $(VENV)/.torch
	@echo "installing what the engine needs"
	@$(PY) -c "$$NEEDS" engine > $(VENV)/engine.txt
	@$(PIP) --no-build-isolation -r $(VENV)/engine.txt
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.core $(VENV)/.torch
	@echo "installing what the tests need"
	@$(PY) -c "$$NEEDS" dev > $(VENV)/dev.txt
	@$(PIP) --no-build-isolation -r $(VENV)/dev.txt
	@touch $@

$(VENV)/.torch: $(VENV)/.tools
	@echo "installing torch"
	@$(PIP) torch==2.13.0
	@touch $@

# For the other venvs, which have the same Python. Compiling the core takes minutes: it is done once, in the folder of .core.
build/wheel/.made: $(VENV)/.core $(SOURCES)
	@rm -rf build/wheel
	@$(PY) -m pip wheel -qq --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir build/wheel .
	@touch $@

build/sanitize/.stamp: SANITIZERS := address,undefined
build/tsan/.stamp: SANITIZERS := thread
build/%/.stamp: $(VENV)/.tools pyproject.toml CMakeLists.txt $(CORE) $(SOURCES)
	@echo "building the core with sanitizers ($(SANITIZERS))"
	@$(PIP) --no-build-isolation --no-deps --upgrade --target build/$* --config-settings=build-dir=build/$*-cmake \
	  --config-settings=cmake.build-type=RelWithDebInfo "--config-settings=cmake.define.SANITIZERS=$(SANITIZERS)" .
	@touch $@
