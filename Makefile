# Everything from a clean clone: Python 3.10+ with venv, git and make are enough. Node comes as a Python wheel where
# none is found; pip's and npm's own settings (environment, configuration files) are honoured and nothing is set here.
# Each step leaves a stamp, so that a second run only does what changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := MEMWIDGET_SKIP_BUNDLE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
NPM := $(BIN)/python hatch_build.py npm
STATIC := src/memwidget/show/static
BUNDLE := $(STATIC)/standalone.js
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
FIND_BROWSER = { [ -n "$$MEMWIDGET_CHROMIUM" ] || for b in $(BROWSERS); do command -v $$b && break; done | grep -q .; }

.NOTPARALLEL:
.PHONY: help demo test lint js-test gpu fuzz bench screenshots watch clean browser

help:
	@echo "make demo         run the first notebook, write it and an HTML page to demo/, open JupyterLab (DEMO_OPEN=0: do not)"
	@echo "make test         lint, types, TypeScript tests, Python, package, notebook and browser tests"
	@echo "make gpu          the tests that need a CUDA device, the notebooks on it, what recording costs"
	@echo "make fuzz         feed the readers broken and hostile files (FUZZ_SECONDS=600, FUZZ_SEED=anything)"
	@echo "make bench        speed and size against their targets, as a table"
	@echo "make screenshots  the pictures of the README"
	@echo "make watch        rebuild the front end on every change (use with ANYWIDGET_HMR=1)"

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "memwidget needs Python 3.10 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) -e ".[demo,torch]" "hatchling>=1.27"
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.demo

# npm writes node_modules/.package-lock.json last.
js/node_modules/.package-lock.json: js/package.json js/package-lock.json js/.npmrc | $(VENV)/.demo
	node=$$($(BIN)/python hatch_build.py requires) && { [ -z "$$node" ] || $(PIP) "$$node"; }
	$(NPM) ci
	@touch $@

$(BUNDLE): js/node_modules/.package-lock.json js/build.mjs js/tsconfig.json $(wildcard js/src/*)
	$(NPM) run build
	@touch $(STATIC)/*

demo: $(VENV)/.demo $(BUNDLE)
	$(BIN)/python notebooks/demo.py demo
ifneq ($(DEMO_OPEN),0)
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) demo/first_look.ipynb
endif

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

js-test: js/node_modules/.package-lock.json
	$(NPM) run check
	$(NPM) test

browser:
	@$(FIND_BROWSER) || { [ "$$(id -u)" = 0 ] && command -v apt-get; } || \
		{ echo "no Chromium or Chrome found: install one, or set MEMWIDGET_CHROMIUM to its path" >&2; exit 1; }
	@$(FIND_BROWSER) || { apt-get update && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core; }

test: lint js-test $(BUNDLE) browser
	$(BIN)/pytest -m "not gpu"

gpu: $(VENV)/.dev $(BUNDLE)
	$(BIN)/pytest -m gpu tests/gpu
	$(BIN)/pytest tests/test_notebooks.py
	$(BIN)/python tests/gpu/overhead.py

fuzz: $(VENV)/.dev $(BUNDLE)
	$(BIN)/python tests/fuzz.py --seconds $${FUZZ_SECONDS:-600} $${FUZZ_SEED:+--seed "$$FUZZ_SEED"}

bench: $(VENV)/.dev $(BUNDLE) browser
	$(BIN)/python bench/run.py

screenshots: $(VENV)/.dev $(BUNDLE) browser
	$(BIN)/python docs/screenshots.py

watch: js/node_modules/.package-lock.json
	$(NPM) run watch

clean:
	rm -rf $(VENV) js/node_modules $(STATIC) demo dist .mypy_cache .ruff_cache .pytest_cache
