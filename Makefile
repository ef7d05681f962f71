# SPDX-License-Identifier: Apache-2.0
# Start here: `make` lists the targets. They install missing Debian 12 packages themselves.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_ARGS ?=

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PROGRAM := $(BUILD)/bin/reshard
# ThreadSanitizer of g++ 12 fails if the kernel randomises more address bits than it expects.
NO_ASLR := $(shell setarch -R true 2>/dev/null && echo setarch -R)
# Tests import torch in hundreds of processes. Without its bytecode, which pip does not write, that takes twice as long.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(BUILD))/pycache

.PHONY: help
help: ## this list
	@echo 'reshard: moves model weights from any parallel layout to any other'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo '  variables: BUILD=$(BUILD) JOBS=$(JOBS) CMAKE_ARGS=$(CMAKE_ARGS)'

.PHONY: deps
deps: ## install the missing packages for building and testing
	@tools/install_deps.sh build test

# Tests are left out of a new folder only: turning them off in an old one would delete their objects.
.PHONY: build
build: ## build the program, build/bin/reshard, and what `cmake --install build` installs
	@tools/install_deps.sh build
	@tools/build.sh $(BUILD) $(JOBS) reshard_installed $(CMAKE_ARGS) \
	  $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DRESHARD_DEV=OFF)

# The program, the tests and the benchmarks' drivers.
.PHONY: build-all
build-all: deps
	@tools/build.sh $(BUILD) $(JOBS) all $(CMAKE_ARGS) -DRESHARD_DEV=ON

.PHONY: demo
demo: build ## shard a small MoE model as a trainer does, refit it into an engine, verify every byte
	@tools/demo.sh $(PROGRAM) $(BUILD)/demo

.PHONY: python-env
python-env: deps
	@tools/python_env.sh $(BUILD)/venv tests/python/requirements.txt

.PHONY: megatron-env
megatron-env: deps
	@tools/python_env.sh $(BUILD)/megatron-venv tests/megatron/requirements.txt

# In the folder of the program, whose objects it shares.
.PHONY: python
python: deps python-env ## build the Python package as a wheel, and install it into build/venv
	@tools/python_wheel.sh $(BUILD)

# Opt-in: takes half an hour on two cores, and the compiler and the build folders 1.5 GB. docs/install.md
.PHONY: wheels
wheels: build ## the wheels for others, build-wheels/dist/: x86_64 and aarch64, Python 3.10 and later, any Linux of glibc 2.28
	@tools/install_deps.sh build test wheels
	@tools/wheels.sh $(BUILD)-wheels $(JOBS) $(BUILD)/generated

.PHONY: wheels-test
wheels-test: ## tries those wheels in bare Debian 11, 12 and 13, and for arm64 in Debian 12 under qemu, with the C++ tests of the lowest rooms
	@tools/install_deps.sh wheels
	@for system in bullseye bookworm trixie 'bookworm arm64'; do \
	  tools/wheels/try.sh $(BUILD)-wheels/systems $(BUILD)-wheels/dist $$system || exit 1; done
	@tools/wheels/test_arm64.sh $(BUILD)-wheels $(JOBS) $(BUILD)-wheels/systems/bookworm-arm64 base index layout sharding memory transform

# Opt-in: as long as wheels. docs/release.md
.PHONY: release
release: ## all files of a release, build-release/, from a tree without changes
	@[ -z "$$(git status --porcelain)" ] || { echo 'release: the tree has changes: commit or remove them' >&2; exit 1; }
	@tools/release.py check >/dev/null
	@$(MAKE) wheels
	@rm -rf $(BUILD)-release.prefix && cmake --install $(BUILD) --prefix $(BUILD)-release.prefix >/dev/null
	@tools/release.py assemble $(BUILD)-wheels/dist $(BUILD)-release.prefix $(BUILD)-release
	@rm -rf $(BUILD)-release.prefix

# Opt-in: its environment takes 100 MB, doxygen 20 MB; site-test also wants Chromium. docs/site.md
.PHONY: site
site: python ## the documentation as a site, with the API of C++ and Python, build/site/
	@tools/install_deps.sh site
	@tools/python_env.sh $(BUILD)/site-venv tools/site/requirements.txt
	@tools/site/build.sh $(BUILD)/site $(BUILD)/site-venv $(BUILD)/venv

.PHONY: site-test
site-test: site ## looks at that site in a browser, at the width of a desktop and of a phone; links, code, pictures, search
	@tools/install_deps.sh browser
	@RESHARD_SITE=$(abspath $(BUILD))/site $(BUILD)/venv/bin/python -m pytest -q --no-header -p no:cacheprovider -rs tests/site

# Opt-in: its environment takes 2.1 GB.
.PHONY: python-test
python-test: build python ## all tests of the Python package; `make test` skips those with Ray, JAX, notebooks and pyright
	@tools/python_env.sh $(BUILD)/python-venv python/tests/requirements.txt
	@$(BUILD)/python-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@RESHARD_BIN=$(abspath $(PROGRAM)) $(BUILD)/python-venv/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider -rs --disable-warnings python/tests

.PHONY: transformers-env
transformers-env: deps
	@tools/python_env.sh $(BUILD)/transformers4-venv tests/transformers4/requirements.txt

# Without conftest.py, which needs transformers 5.
.PHONY: transformers-test
transformers-test: build transformers-env ## fully_shard on the modules of transformers 4 (`make test`: of 5)
	@RESHARD_BIN=$(PROGRAM) $(BUILD)/transformers4-venv/bin/python -m pytest -q --noconftest \
	  -p no:cacheprovider tests/python/test_fsdp_modules.py

.PHONY: test
test: python-env megatron-env build-all python ## all tests but the slow ones; ends with "N passed, N failed"
	@tools/run_tests.sh $(BUILD) -LE slow

.PHONY: test-all
test-all: python-env megatron-env build-all python ## all tests: also slow ones, flipped rules, unoptimised, sanitizers
	@tools/install_deps.sh fuzz # clang, for the test that embeds reshard in a project of its own
	@RESHARD_SLOW_TESTS=1 tools/run_tests.sh $(BUILD) -LE unit # NAME.all runs these tests too
	@$(MAKE) mutants
	@$(MAKE) debug
	@$(MAKE) asan
	@$(MAKE) tsan

# Opt-in: its environment takes 3.5 GB.
.PHONY: vllm-test
vllm-test: build python ## with vLLM itself: update running engines; compare what its loaders make of checkpoints
	@tools/python_env.sh $(BUILD)/vllm-venv tests/vllm/requirements.txt
	@$(BUILD)/vllm-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@RESHARD_BIN=$(abspath $(PROGRAM)) $(BUILD)/vllm-venv/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider -rs --disable-warnings tests/vllm

# Opt-in: its environment takes 3.9 GB.
.PHONY: trl-env
trl-env: build python ## TRL, vLLM and reshard in build/trl-venv, for examples/python/grpo_tiny.py
	@tools/python_env.sh $(BUILD)/trl-venv tests/trl/requirements.txt
	@$(BUILD)/trl-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl

.PHONY: trl-test
trl-test: trl-env ## with TRL itself: its trainers update running vLLM servers after each step
	@$(BUILD)/trl-venv/bin/python -m pytest -q --no-header -p no:cacheprovider -rs --disable-warnings tests/trl

# Opt-in, with the environment of vllm-test.
.PHONY: models-test
models-test: build python ## prove every layout card that ships anew, with small models of each class in transformers, vLLM, SGLang and Megatron; bring each class home
	@$(BUILD)/venv/bin/python -m reshard.learn transformers examples/cards/transformers --check
	@RESHARD_ALL_MODELS=1 RESHARD_BIN=$(abspath $(PROGRAM)) $(BUILD)/venv/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider tests/python/test_class_round_trips.py
	@tools/python_env.sh $(BUILD)/vllm-venv tests/vllm/requirements.txt
	@$(BUILD)/vllm-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@$(BUILD)/vllm-venv/bin/python -m pip --quiet install --no-deps --upgrade --target $(BUILD)/torchvision torchvision==0.28.0
	@PYTHONPATH=$(abspath $(BUILD)/torchvision) $(BUILD)/vllm-venv/bin/python -m reshard.learn vllm examples/cards/vllm --check
	@tools/python_env.sh $(BUILD)/frameworks-venv python/tests/requirements-frameworks.txt
	@$(BUILD)/frameworks-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@$(BUILD)/frameworks-venv/bin/python -m reshard.learn sglang examples/cards/sglang --check
	@$(BUILD)/venv/bin/python -m pip --quiet install --no-deps --no-compile --upgrade --ignore-requires-python \
	  --target $(BUILD)/bridge --requirement tests/megatron/requirements-bridge.txt
	@PYTHONPATH=$(abspath $(BUILD)/bridge) $(BUILD)/venv/bin/python -m reshard.learn megatron examples/cards/megatron --check

# Opt-in: its environment takes 2.9 GB.
.PHONY: frameworks-test
frameworks-test: build python ## the adapters of verl and SGLang with the real packages; `make test` has stand-ins
	@tools/python_env.sh $(BUILD)/frameworks-venv python/tests/requirements-frameworks.txt
	@$(BUILD)/frameworks-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@RESHARD_BIN=$(abspath $(PROGRAM)) $(BUILD)/frameworks-venv/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider -rs --disable-warnings python/tests/test_verl*.py python/tests/test_sglang*.py python/tests/test_nemo_rl.py

# Opt-in: an environment of 1.5 GB for each release. Releases from 0.17 on ask for Python 3.12, but work with 3.11.
VERSION ?= 0.19.2
.PHONY: megatron-test
megatron-test: build python ## refits of Megatron-Core's modules with release VERSION (0.19.2); `make test` has 0.16.1
	@tools/python_env.sh $(BUILD)/megatron-$(VERSION)-venv tests/megatron/requirements-newer.txt
	@$(BUILD)/megatron-$(VERSION)-venv/bin/python -m pip --quiet install --no-deps --no-compile --upgrade \
	  --only-binary=:all: --python-version 3.12 --ignore-requires-python \
	  --target $(BUILD)/megatron-$(VERSION) megatron-core==$(VERSION)
	@$(BUILD)/megatron-$(VERSION)-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@RESHARD_BIN=$(abspath $(PROGRAM)) PYTHONPATH=$(abspath $(BUILD))/megatron-$(VERSION) \
	  $(BUILD)/megatron-$(VERSION)-venv/bin/python -m pytest -q --no-header \
	  -p no:cacheprovider -rs --disable-warnings tests/megatron/test_refit.py

# Opt-in: without a CUDA toolkit it installs nvcc, 300 MB.
.PHONY: gpu-build
gpu-build: deps ## the program and tests with kernels for GPUs, and a bundle of them for a machine without network
	@tools/gpu_build.sh $(BUILD)-gpu $(BUILD)/cuda-venv $(JOBS) $(CMAKE_ARGS)

.PHONY: gpu-test
gpu-test: gpu-build ## the tests of GPUs on GPU 0; says what it skips
	@$(BUILD)-gpu/gpu-bundle/test.sh

.PHONY: gpu-bench
gpu-bench: gpu-build ## refits on GPU 0 against the driver's own copy
	@$(BUILD)-gpu/gpu-bundle/bench.sh --out $(abspath bench/results)

.PHONY: mutants
mutants: build-all python-env ## flip each layout rule; a test must fail each time
	@python3 tests/mutation/run.py $(BUILD)

.PHONY: debug
debug: deps ## the C++ tests without optimisation, every source compiled by itself, no type defined twice
	@tools/build.sh $(BUILD)-debug $(JOBS) all $(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=Debug
	@RESHARD_NO_PYTEST=1 tools/run_tests.sh $(BUILD)-debug -LE slow

.PHONY: asan
asan: deps ## the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/build.sh $(BUILD)-asan $(JOBS) all $(CMAKE_ARGS) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRESHARD_SANITIZE=address,undefined
	@RESHARD_NO_PYTEST=1 tools/run_tests.sh $(BUILD)-asan -LE 'slow|style'

.PHONY: python-asan
python-asan: build python ## the Python tests with the extension under AddressSanitizer
	@tools/python_asan.sh $(BUILD)-python-asan $(BUILD) $(JOBS)

.PHONY: tsan
# Without MPI, UCX and Gloo: ThreadSanitizer cannot follow their threads, and crashes in UCX's memory hooks.
tsan: deps ## the C++ tests under ThreadSanitizer
	@$(NO_ASLR) tools/build.sh $(BUILD)-tsan $(JOBS) all $(CMAKE_ARGS) \
	  -DCMAKE_BUILD_TYPE=RelWithDebInfo -DRESHARD_SANITIZE=thread \
	  -DRESHARD_WITH_MPI=OFF -DRESHARD_WITH_UCX=OFF -DRESHARD_WITH_GLOO=OFF
	@RESHARD_NO_PYTEST=1 $(NO_ASLR) tools/run_tests.sh $(BUILD)-tsan -LE 'slow|style|cross|faults'

# Its own build folder, but the Python environments of $(BUILD).
.PHONY: coverage
coverage: deps python-env megatron-env ## lines and branches that the tests run, by room; fails below 90 % of a room's lines
	@tools/install_deps.sh coverage
	@tools/build.sh $(BUILD)-coverage $(JOBS) all $(CMAKE_ARGS) \
	  -DCMAKE_BUILD_TYPE=None -DRESHARD_DEV=ON -DRESHARD_INSTALL=OFF -DRESHARD_COVERAGE=ON
	@ln -sfn $(abspath $(BUILD)/venv) $(BUILD)-coverage/venv
	@ln -sfn $(abspath $(BUILD)/megatron-venv) $(BUILD)-coverage/megatron-venv
	@tools/coverage.sh $(BUILD)-coverage $(JOBS)

.PHONY: bench
bench: build-all bench-python ## the benchmarks; their reports go to build/bench-reports/
	@tools/bench.sh $(BUILD) $(JOBS)

# Its environment takes 1.5 GB.
.PHONY: bench-python
bench-python: build python ## of those, the Python package beside Megatron, NIXL, Mooncake, ModelExpress, transformers
	@tools/python_env.sh $(BUILD)/bench-venv bench/python/requirements.txt
	@$(BUILD)/bench-venv/bin/python -m pip --quiet install --no-deps --no-index --force-reinstall $(BUILD)/wheels/*.whl
	@tools/bench_python.sh $(BUILD)

.PHONY: fuzz
fuzz: ## every fuzz target, FUZZ_SECONDS (30) each, with clang
	@tools/install_deps.sh build test fuzz
	@CXX=clang++-19 tools/build.sh $(BUILD)-fuzz $(JOBS) fuzz $(CMAKE_ARGS) -DRESHARD_FUZZ=ON
	@tools/fuzz.sh $(BUILD)-fuzz

.PHONY: format
format: ## clang-format the C++ sources in place
	@tools/install_deps.sh lint
	@git ls-files -co --exclude-standard '*.h' '*.cc' | xargs -r clang-format-19 -i

.PHONY: lint
lint: build-all ## rooms and style, formatting, clang-tidy on changed files (LINT=all: on every file)
	@tools/install_deps.sh lint
	@tools/lint.sh $(BUILD) $(JOBS) $(LINT)

.PHONY: clean
clean: ## remove the build folders
	rm -rf $(BUILD) $(BUILD)-debug $(BUILD)-asan $(BUILD)-python-asan $(BUILD)-tsan $(BUILD)-coverage $(BUILD)-fuzz $(BUILD)-gpu $(BUILD)-wheels
