# `make help` lists what there is. Every target does its own set-up, once.
PYTHON ?= python3
VENV ?= .venv
CC ?= cc
SAN ?=
FAULTS ?=
T ?=
SAMPLE ?=
V ?=
PAGE ?=
SEED ?=
TIME ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
JOBS := $(shell nproc)

ifneq ($(SAN),)
ifneq ($(filter-out check ctest c-programs hostile build/c-%,$(MAKECMDGOALS)),)
$(error SAN= belongs to `make check` and `make ctest`: the C tests run under the sanitizer)
endif
endif

# Only the virtual environment counts, whatever the user's own shell has set.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP PIP_TARGET PIP_USER PIP_PREFIX VIRTUAL_ENV
# The tests start thousands of interpreters: none shall compile again what another one has.
unexport PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -q -c constraints.txt
CORE := shmgpu/_core.abi3.so

# $(call step,NAME,COMMAND): one line when it goes well, all it printed when it does not.
ifeq ($(V),)
step = mkdir -p build/log && echo "  $(1)" && { $(2) >build/log/$(1).log 2>&1 </dev/null \
  || { cat build/log/$(1).log; echo "make: $(1) failed."; exit 1; }; }
else
step = mkdir -p build/log && echo "  $(1)" && $(2)
endif
# Several makes may run in one checkout: those that write to the environment take turns.
locked = $(call step,$(1),flock -o build/lock $(2))

.PHONY: help
help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=python3 VENV=.venv CC=cc SAN=address,undefined|thread FAULTS=1 T='pytest or C test names' V=1 SEED=7 TIME=120"

# ---- set-up ------------------------------------------------------------------------------

# An environment that was moved, or whose interpreter is gone, is made anew.
venv_good := $(shell [ "$$(cat $(VENV)/.stamp-venv 2>/dev/null)" = "$(CURDIR)" ] && $(PY) -c '' 2>/dev/null && echo yes)
ifneq ($(venv_good),yes)
.PHONY: $(VENV)/.stamp-venv
endif

$(VENV)/.stamp-venv:
	@.ci/system-packages $(PYTHON) $(CC)
	@grep -qsF "$(CURDIR)/$(VENV)" $(VENV)/pyvenv.cfg $(VENV)/bin/activate && $(PY) -c 'import pip' 2>/dev/null \
	  || { $(call step,environment,$(PYTHON) -m venv --clear $(VENV)); }
	@echo "$(CURDIR)" >$@

$(VENV)/.stamp-run: pyproject.toml constraints.txt setup.py | $(VENV)/.stamp-venv
	@$(call locked,build-tools,$(PIP) setuptools wheel cffi)
	@$(call locked,install,$(PIP) --no-build-isolation -e '.[demo]')
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-run
	@$(call locked,install-dev,$(PIP) --no-build-isolation -e '.[dev]')
	@touch $@

$(VENV)/.stamp-bench: $(VENV)/.stamp-run
	@.ci/bench-tools
	@$(call locked,install-bench,$(PIP) --no-build-isolation -e '.[bench]')
	@touch $@

# What is built depends on the list of files too, and the extensions on their flags.
CORE_C := $(sort $(wildcard csrc/*.c csrc/*/*.c))
CORE_H := $(sort $(wildcard csrc/*.h csrc/*/*.h))
PYTHON_C := $(sort $(wildcard csrc/python/*/*.[ch]))
ifneq ($(CORE_C) $(PYTHON_C),$(shell cat build/sources 2>/dev/null))
.PHONY: build/sources
endif
build/sources:
	@mkdir -p build && echo "$(CORE_C) $(PYTHON_C)" >$@

extension_sources := $(CORE_C) $(CORE_H) $(PYTHON_C) csrc/build_core.py csrc/build_python.py csrc/hardening.py setup.py build/sources

core_flags := FAULTS=$(FAULTS)
ifneq ($(core_flags),$(shell cat build/core-flags 2>/dev/null))
.PHONY: build/core-flags
endif
build/core-flags:
	@mkdir -p build && echo "$(core_flags)" >$@

$(CORE): export SHMGPU_BUILD_FAULTS := $(FAULTS)
$(CORE): $(extension_sources) build/core-flags | $(VENV)/.stamp-run
	@$(call locked,extensions,$(PY) setup.py -q build_ext --inplace --force)
	@touch $@

# The test build: the same package with fault points compiled in, beside the normal one.
FAULTY := build/faults/shmgpu/_core.abi3.so
package_parts := $(wildcard shmgpu/*.py) shmgpu/py.typed $(patsubst %/,%,$(dir $(wildcard shmgpu/*/__init__.py)))
$(FAULTY): export SHMGPU_BUILD_FAULTS := 1
$(FAULTY): $(extension_sources) | $(VENV)/.stamp-run
	@$(call locked,extensions-with-faults,$(PY) setup.py -q build_ext --force --build-temp build/faults-temp --build-lib build/faults)
	@touch $@

# The same package with all of its C under ASan and UBSan: tests of calls run on it. Python's own objects
# come from malloc then, so what is used after its end is seen, whosever it is.
SANITIZED := build/sanitized/shmgpu/_core.abi3.so
sanitizers := -fsanitize=address,undefined
$(SANITIZED): export CFLAGS += $(sanitizers) -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g
$(SANITIZED): export LDFLAGS += $(sanitizers)
$(SANITIZED): $(extension_sources) | $(VENV)/.stamp-run
	@$(call locked,extensions-sanitized,$(PY) setup.py -q build_ext --force --build-temp build/sanitized-temp --build-lib build/sanitized)
	@touch $@
sanitized_tests := $(addprefix tests/unit/test_,signatures.py known_calls.py future_objects.py wakes.py) \
  $(addprefix tests/broker/test_,batches.py calls.py event_loops.py futures.py interrupted.py kept_while_out.py \
    kinds_of_calls.py mutates.py nonsense.py output_buffers.py prepared_calls.py windows.py) \
  $(addprefix tests/serve/test_,http2_session.py json_fast_path.py)

# ---- what people ask for -----------------------------------------------------------------

.PHONY: setup demo test doorstep storm soak faults mutants check bench plots example
setup: $(VENV)/.stamp-dev $(CORE) ## the virtual environment, ready for work

.PHONY: house
house: ## what is where: each wing, what it never does, its files and in whose processes they run
	@$(PYTHON) tests/house.py

demo: $(VENV)/.stamp-run $(CORE) ## 32 processes, 2 sessions, real data: what this is about
	@$(VENV)/bin/shmgpu demo

# A build beside the normal one: its extensions, and links to all that is Python.
beside = find $(1)/shmgpu -maxdepth 1 -xtype l -delete && \
  for part in $(package_parts); do ln -sfn "../../../$$part" "$(1)/$$part"; done

faults: $(FAULTY) ## the test build, with fault points, into build/faults (see tests/README.md)
	@$(call beside,build/faults)

# Not python -m pytest, which would look for the package in this folder first.
.PHONY: sanitized
sanitized: $(VENV)/.stamp-dev $(SANITIZED) ## tests of calls, with all C of the package under ASan and UBSan (T='tests/broker')
	@$(call beside,build/sanitized)
	@$(call step,sanitized,tests/under sanitized "$(CC)" build/sanitized timeout --foreground --signal=ABRT \
	  --kill-after=30 1500 $(VENV)/bin/pytest --timeout=360 $(or $(T),$(side_by_side) $(sanitized_tests)))

# A worker for each core and one more (tests/parallel.py), and whole files for each worker: what a
# file's tests share is made once.
side_by_side := -n auto --dist loadfile
pytest_within = timeout --foreground --signal=ABRT --kill-after=30 $(1) $(PY) -m pytest

# Thousands of tests each try one operation, or one cell of a large table: a sample of them runs at a
# time, and all in `make check`.
sample_seed := $(or $(SEED),$(shell echo $$RANDOM))
sampled = --operations=$(1):$(sample_seed)

test: $(VENV)/.stamp-dev $(CORE) faults ## the tests but the slow ones (T='tests/unit -k arena' for a part, slow or not)
	@$(if $(T),,echo "  a sample of tests of operations and of large tables: SEED=$(sample_seed)")
	@$(call pytest_within,1200) $(or $(T),$(side_by_side) -m "not slow" $(call sampled,12))

# Each file under one of three conditions, which the seed deals out; and the tests in random order.
# What they start is started as a user does it: elsewhere it has torch from the beginning.
rough_seed := $(or $(SEED),$(shell echo $$RANDOM))
rough = -m "not slow" --cold $(call sampled,12) --shuffle=$(rough_seed) --part=$(1)/3 --timeout=360
.PHONY: rough
rough: $(VENV)/.stamp-dev $(CORE) faults ## the tests in random order, on one core, on a busy machine: a third each (SEED=7)
	@echo "  rough: SEED=$(rough_seed)"
	@$(call step,random-order,$(call pytest_within,1500) $(side_by_side) $(call rough,1))
	@$(call step,one-core,tests/under one-core $(call pytest_within,1500) $(call rough,2))
	@$(call step,busy-machine,tests/under busy-machine $(call pytest_within,1500) $(side_by_side) $(call rough,3))

.PHONY: stolen-time
stolen-time: $(VENV)/.stamp-dev $(CORE) faults ## the tests while each core is taken away for random moments, half of the time (SEED=7)
	@SEED=$(sample_seed) tests/under stolen-time $(call pytest_within,3000) --timeout=360 \
	  $(or $(T),$(side_by_side) -m "not slow" $(call sampled,12))

mutants: $(VENV)/.stamp-dev $(CORE) ## switch off each protection: its test must fail (T='F01 F36'; SAMPLE=100 SEED=7: random changes)
	@$(PY) $(if $(SAMPLE),tests/mutants/sample.py --sample $(SAMPLE) $(if $(SEED),--seed $(SEED)) $(T),tests/mutants $(T))

doorstep: $(VENV)/.stamp-dev $(CORE) ## what a user does first: clone, install, README, examples, Ctrl-C (T='Ctrl-C' SEED=7)
	@SEED="$(SEED)" VERBOSE="$(V)" $(PY) tests/doorstep $(T)

weather = cd tests && "$(abspath $(PY))" -m crash.$(1) --seconds $(or $(TIME),$(2)) $(if $(SEED),--seed $(SEED))

storm: $(VENV)/.stamp-dev $(CORE) ## two minutes of random kills under load (SEED=7 TIME=120)
	@$(call weather,storm,120)

soak: $(VENV)/.stamp-dev $(CORE) ## half an hour: memory, descriptors, p99 must be flat (SEED=7 TIME=1800)
	@$(call weather,soak,1800) --out "$(CURDIR)/build/soak"

bench: $(VENV)/.stamp-bench $(CORE) ## benchmarks against their rivals (T='messages calls' for some)
	@$(PY) -m benchmarks $(T)

plots: $(VENV)/.stamp-bench ## the plots of benchmarks/FIGURES.md, from the latest full run in benchmarks/results
	@$(PY) -m benchmarks plots $(T)

$(VENV)/.stamp-site: $(VENV)/.stamp-run
	@$(call locked,install-site,$(PIP) --no-build-isolation -e '.[site]')
	@touch $@

.PHONY: site
site: $(VENV)/.stamp-site $(CORE) ## the pages and a reference of the public names, in build/site
	@$(PY) .site/build.py

ifeq ($(SAN),)
check: $(VENV)/.stamp-dev $(CORE) faults ## lint, types, layering, the slow tests, rough conditions, all C sanitized
	@$(call step,lint,$(PY) -m ruff check .)
	@$(call step,format,$(PY) -m ruff format --check .)
	@$(call step,types,$(PY) -m mypy)
	@$(call step,layering-and-binding,$(PY) -m pytest -q tests/unit/test_layering.py tests/unit/test_packaging.py)
	@$(MAKE) audit T=code
	@$(call step,slow-tests,$(call pytest_within,1500) $(side_by_side) --cold --timeout=360 -m slow)
	@$(call step,operations,$(call pytest_within,1200) $(side_by_side) -m "operations or table" tests)
	@$(MAKE) rough
	@$(MAKE) ctest
	@$(MAKE) ctest PAGE=65536 T="arena scoreboard listener launch"
	@$(MAKE) ctest FAULTS=1 T=collective
	@$(MAKE) ctest SAN=address,undefined
	@$(MAKE) ctest SAN=thread
	@$(MAKE) sanitized
else
check: ctest # `make check SAN=...`: the C tests under that sanitizer
endif

example: build/messages ## build and run the C example, linked with the C core alone
	@build/messages

# ---- C: tests, libraries, example --------------------------------------------------------

comma := ,
WARNINGS := -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Werror
C_FLAGS := -std=c11 -D_GNU_SOURCE -fvisibility=hidden -fPIC -pthread $(if $(FAULTS),-DSHM_FAULTS) $(CFLAGS)

# What this compiler takes of what hardens a build: a line to compile with, one to link with, and CC.
ifneq ($(CC),$(shell sed -n 3p build/hardening 2>/dev/null))
.PHONY: build/hardening
endif
build/hardening: csrc/hardening.py
	@mkdir -p $(@D) && { $(PYTHON) csrc/hardening.py "$(CC)" && echo "$(CC)"; } >$@
HARD = $$(sed -n 1p build/hardening)
HARD_LINK = $$(sed -n 2p build/hardening)

flavour := $(if $(SAN),$(subst $(comma),-,$(SAN)),plain)$(if $(FAULTS),-faults)$(if $(PAGE),-pages-of-$(PAGE))
out := build/c-$(flavour)
c_test_flags := $(C_FLAGS) $(WARNINGS) $(if $(PAGE),-DSHMI_PAGE_BYTES=$(PAGE)) -DSHMI_TESTING -g -Icsrc -Itests/c \
  $(if $(SAN),-O1 -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all,-O2 $(HARD))
c_test_objects := $(CORE_C:csrc/%.c=$(out)/core/%.o)
c_tests := $(patsubst tests/c/%.c,$(out)/tests/%,$(sort $(wildcard tests/c/test_*.c)))
c_tests_wanted := $(if $(T),$(foreach name,$(T),$(filter %test_$(name),$(c_tests))),$(c_tests))

.PHONY: ctest c-programs
ctest: ## the C tests (T='tlsf frame' for some of them; PAGE=65536 as on a machine of such pages)
	@$(if $(c_tests),$(MAKE) -j$(JOBS) c-programs && tests/c/run_c_tests "$(flavour)" "$(SAN)" "$(CC)" $(c_tests_wanted),echo "c-$(flavour): no test yet")

c-programs: $(c_tests_wanted)
	@:

# One missing archive member is one missing room, not one broken build.
$(out)/libcore.a: $(c_test_objects) build/sources
	@rm -f $@ && ar rcs $@ $(c_test_objects)

$(out)/core/%.o: csrc/%.c build/hardening
	@mkdir -p $(@D) && $(CC) $(c_test_flags) -MMD -MP -c $< -o $@

$(out)/tests/%: tests/c/%.c $(out)/libcore.a
	@mkdir -p $(@D) && $(CC) $(c_test_flags) -MMD -MP -MF $@.d $< $(out)/libcore.a -lm -o $@

-include $(wildcard build/c-*/core/*.d build/c-*/core/*/*.d build/c-*/tests/*.d build/c-*/hostile/*.d build/lib/*.d build/lib/*/*.d)

# Hostile children: `make test` runs them plain and for seconds, this for a minute and sanitized.
TIME ?= 60
SEED ?=
.PHONY: hostile
ifeq ($(SAN),)
hostile: ## hostile C children for a minute, under ASan and UBSan (TIME=600 SEED=7)
	@$(MAKE) hostile SAN=address$(comma)undefined
else
hostile: $(out)/hostile/hostile $(out)/hostile/rows
	@VERBOSE=1 HOSTILE_SECONDS=$(TIME) HOSTILE_SEED=$(SEED) \
	  tests/c/run_c_tests "$(flavour)" "$(SAN)" "$(CC)" $^
endif

$(out)/hostile/%: tests/hostile/%.c $(out)/libcore.a
	@mkdir -p $(@D) && $(CC) $(c_test_flags) -MMD -MP -MF $@.d $< $(out)/libcore.a -lm -o $@

.PHONY: lib
lib: build/libshmgpu.a build/libshmgpu.so ## the C library, static and shared, into build/

lib_objects := $(CORE_C:csrc/%.c=build/lib/%.o)
build/lib/%.o: csrc/%.c build/hardening
	@mkdir -p $(@D) && $(CC) $(C_FLAGS) -O2 -g $(HARD) -Icsrc -MMD -MP -c $< -o $@

build/libshmgpu.a: $(lib_objects) build/sources
	@rm -f $@ && ar rcs $@ $(lib_objects) && echo "  $@"

build/libshmgpu.so: $(lib_objects) build/sources
	@$(CC) -shared -pthread -Wl,-soname,libshmgpu.so.0 -Wl,-z,defs $(HARD_LINK) $(lib_objects) -o $@ && echo "  $@"

build/messages: examples/messages.c build/libshmgpu.a csrc/shmgpu.h
	@$(CC) $(C_FLAGS) -Wall -Wextra -O2 -g -Icsrc $< build/libshmgpu.a -o $@

# Fuzzing: `make test` replays the corpora, compiled by any compiler; this looks for more.
CLANG ?= clang
fuzz_c := $(patsubst tests/fuzz/fuzz_%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
fuzz_py := $(patsubst tests/fuzz/fuzz_%.py,%,$(sort $(wildcard tests/fuzz/fuzz_*.py)))
fuzz_wanted := $(if $(T),$(T),$(fuzz_c) $(fuzz_py) operations)
FUZZ_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all

.PHONY: fuzz
fuzz: $(VENV)/.stamp-fuzz $(CORE) ## fuzz targets, a minute each (T='frame tlsf' TIME=600)
	@if .ci/fuzz-tools "$(CLANG)"; then $(MAKE) -j$(JOBS) fuzz-programs; fi
	@tests/fuzz/run_fuzz "$(TIME)" "$(CURDIR)/$(PY)" $(fuzz_wanted)

.PHONY: fuzz-programs
fuzz-programs: $(patsubst %,build/fuzz/%,$(filter $(fuzz_c),$(fuzz_wanted)))
	@:

$(VENV)/.stamp-fuzz: $(VENV)/.stamp-dev
	@$(call locked,install-fuzz,$(PIP) --no-build-isolation -e '.[fuzz]')
	@touch $@

build/fuzz/%: tests/fuzz/fuzz_%.c tests/fuzz/fuzz.h $(CORE_C) $(CORE_H)
	@mkdir -p $(@D) && $(CLANG) $(C_FLAGS) $(FUZZ_FLAGS) -Icsrc $< $(CORE_C) -lm -o $@

$(out)/fuzz/%: tests/fuzz/fuzz_%.c tests/fuzz/replay.c tests/fuzz/fuzz.h $(out)/libcore.a
	@mkdir -p $(@D) && $(CC) $(c_test_flags) $(filter %.c,$^) $(out)/libcore.a -lm -o $@

# ---- Triton ------------------------------------------------------------------------------

TRITON := $(VENV)-triton
.PHONY: bench-triton
bench-triton: $(VENV)/.stamp-bench $(CORE) ## the server's benchmark beside NVIDIA's tritonserver, from its wheel (T='--list')
	@if .ci/triton-tools "$(PYTHON)" "$(TRITON)"; then \
	  PATH="$(CURDIR)/$(TRITON)/bin:$$PATH" $(PY) -m benchmarks $(or $(T),serving paths); fi

# ---- audit -------------------------------------------------------------------------------

AUDIT := $(VENV)-audit
.PHONY: audit
audit: $(VENV)/.stamp-dev ## known weaknesses: pip-audit, bandit, a bill of materials, hashes of the pins (T='code hashes')
	@if .ci/audit-tools "$(PYTHON)" "$(AUDIT)"; then $(PY) tests/audit "$(AUDIT)/bin" "$(abspath $(PY))" $(T); fi

# ---- release -----------------------------------------------------------------------------

.PHONY: dist abi clean distclean
$(VENV)/.stamp-dist: $(VENV)/.stamp-dev
	@$(call locked,install-dist,$(PIP) --no-build-isolation -e '.[dist]')
	@touch $@

# The tests come from the sdist and run beside no package source, so only the wheel can pass them.
dist: $(VENV)/.stamp-dist ## sdist and abi3 wheel; the test suite and the demo from that wheel
	@rm -rf dist build/wheel
	@$(call step,sdist-and-wheel,env PIP_CONSTRAINT=constraints.txt $(PY) -m build --outdir build/wheel .)
	@$(call step,manylinux-tag,env PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m auditwheel repair --wheel-dir dist build/wheel/*.whl)
	@mv build/wheel/*.tar.gz dist && ls dist/*
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
	  { $(call step,wheel-environment,$(PY) -m venv "$$place/venv"); } && \
	  { $(call step,wheel-install,"$$place/venv/bin/python" -m pip install -q -c constraints.txt "$$(echo dist/*.whl)[demo$(comma)dev]"); } && \
	  mkdir "$$place/tree" && tar xf dist/*.tar.gz -C "$$place/tree" --strip-components=1 && \
	  rm -rf "$$place/tree/shmgpu" && cd "$$place/tree" && "$$place/venv/bin/pytest" $(or $(T),$(side_by_side)) && \
	  cd "$$place" && "$$place/venv/bin/shmgpu" demo

PYTHONS ?= python3.10 python3.11 python3.12 python3.13 python3.14
abi: ## whether every CPython found here has what is pinned, and runs that wheel, without torch (PYTHONS='python3.10 ...')
	@wheel=$$(ls dist/*.whl 2>/dev/null) || { echo "There is no wheel yet: make dist."; exit 1; }; \
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT; \
	for python in $(PYTHONS); do \
	  "$$python" -c '' 2>/dev/null || { echo "  $$python: not on this machine"; continue; }; \
	  "$$python" -m venv --clear "$$place/venv"; \
	  grep -v '^torch==' constraints.txt >"$$place/pinned"; \
	  "$$place/venv/bin/python" -m pip install -q --dry-run --no-deps -r "$$place/pinned" || exit 1; \
	  "$$place/venv/bin/python" -m pip install -q -c constraints.txt numpy cffi posix_ipc; \
	  "$$place/venv/bin/python" -m pip install -q --no-deps "$$wheel"; \
	  (cd "$$place" && "$$place/venv/bin/python" "$(CURDIR)/tests/abi.py"); \
	done

clean: ## everything that was built, but not the virtual environment
	@rm -rf build dist shmgpu/_*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## the virtual environments too
	@rm -rf $(VENV) $(AUDIT) $(TRITON)
