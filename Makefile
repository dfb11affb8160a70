# Two commands do all the set-up: `make chat` and `make test`. Both are quick when run again.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -q
# The first installation takes minutes on a slow network, so it shows what pip downloads.
LOUD_PIP := $(PY) -m pip --disable-pip-version-check
# Python compiles what it imports; compiling all modules of all packages takes longer than downloading them.
LEAN := --no-compile --progress-bar on -c constraints.txt

# Compiling the tests takes ten seconds in each of pytest's processes, so the first run does it once, beside mypy.
CACHED := PYTHONDONTWRITEBYTECODE=
COMPILE := $(CACHED) $(PY) -m pytest --collect-only -qq -n 0 >/dev/null 2>&1

.PHONY: chat serve test test-quick docs docs-serve bench soak refresh-models clean

chat: $(VENV)/.chat
	@$(PY) -m foveal chat

serve: $(VENV)/.serve
	@$(PY) -m foveal serve

test: $(VENV)/.test
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check -q .
	@$(VENV)/bin/mypy & types=$$!; [ -d tests/__pycache__ ] || $(COMPILE); wait $$types
	@$(CACHED) $(PY) -m pytest -n 3 --dist worksteal

# For daily work: no types, and only tests that start no server, browser, database or framework (tests/support/chosen_files.py).
test-quick: $(VENV)/.test
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check -q .
	@$(CACHED) $(PY) -m pytest --quick -n 2 --dist worksteal

docs: $(VENV)/.docs
	@$(VENV)/bin/zensical build --strict --clean
	@echo "the site is in site/; make docs-serve shows it"

docs-serve: $(VENV)/.docs
	@$(VENV)/bin/zensical serve

bench: $(VENV)/.bench
	@$(PY) -m bench

# The files of tests that do more in it: examples at random, crashes, all frameworks and clients.
soak: $(VENV)/.test
	@FOVEAL_SOAK=1 $(CACHED) $(PY) -m pytest -n 2 --dist worksteal -o faulthandler_timeout=7200

refresh-models: $(VENV)/.chat
	@$(PY) tools/refresh_models.py

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Foveal needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 …")'
	@echo "making a virtual environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.chat: pyproject.toml constraints.txt $(VENV)/.venv
	@echo "installing foveal: first what the download of the local model needs …"
	@$(LOUD_PIP) -q install $(LEAN) msgspec
	@PYTHONPATH=src $(PY) tools/fetch_model.py $$PPID >/dev/null 2>&1 &
	@echo "installing foveal …"
	@$(LOUD_PIP) install $(LEAN) -e '.[exact,terminal,local]'
	@echo "installed; the first start takes some seconds more …"
	@touch $@

$(VENV)/.serve: $(VENV)/.chat
	@echo "installing what the server uses …"
	@$(PIP) install -c constraints.txt -e '.[exact,chat,local,redaction,server,telegram,discord]'
	@touch $@

$(VENV)/.test: $(VENV)/.chat
	@echo "installing what the tests use …"
	@$(LOUD_PIP) install --progress-bar on -c constraints.txt -e '.[exact,chat,local,llamacpp,test,lint]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt $(VENV)/.venv
	@echo "installing what the site is built with …"
	@$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.bench: $(VENV)/.chat $(VENV)/.peers
	@echo "installing what the benchmarks compare with …"
	@$(PIP) install -c constraints.txt -e '.[exact,chat,local,server,bench]'
	@touch $@

# The peers need older versions of mcp, opentelemetry and pydantic-ai than Foveal's extras.
$(VENV)/.peers: pyproject.toml bench/peers-constraints.txt $(VENV)/.venv
	@echo "making an environment for the peers of the benchmark fit …"
	@$(PYTHON) -m venv $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip --disable-pip-version-check -q install -c bench/peers-constraints.txt -e '.[exact,peers]'
	@touch $@

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .hypothesis
