# Every target sets up what it needs by itself; a second call is quick.
BIN := .venv/bin
# The first that runs, is at least 3.11 and can make environments; PYTHON=... decides otherwise.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
NO_PYTHON := recollect needs Python 3.11 or later with venv; install it, or name one with PYTHON=...

.PHONY: install run test lint docs notebooks dist mutants benchmark clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint]'
	touch $@

run: install
	$(BIN)/recollect compare CartPole-v1 --algorithms vpg rpg vnpg rnpg --max-steps 200 --seeds 20 --iterations 100 --episodes 4 --window 10 --preset paper

test: install
	$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# The site in build/site, from local files alone; every code block is run before. It is read anew
# each time, as much of it comes from the source. Chromium, if there is one, opens every page.
docs: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint,docs]'
	$(BIN)/python tests/pages.py
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs build/site
	$(BIN)/python tests/look.py build/site

# Runs the notebooks under examples/, and writes their outputs into them.
notebooks: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint,notebooks]'
	$(BIN)/python tests/notebooks.py

# Wheel and source distribution in dist/.
dist: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	rm -rf dist
	$(BIN)/python -m hatchling build

mutants: install
	$(BIN)/python tests/mutants/run.py

benchmark: install
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test,lint,benchmark]'
	$(BIN)/python -m pytest --quiet tests/test_sb3.py
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache build dist
