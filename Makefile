# Each target installs what it needs. Newcomers only need `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
INSTALL := install --quiet --disable-pip-version-check
# The first pip that knows dependency groups.
PIP := 'pip>=25.1'

.PHONY: help install demo test test-all test-lowest test-python package check format bench docs clean

help:
	@echo "make demo     the full workflow on generated data"
	@echo "make test     all tests, with a fifth of the examples of each property"
	@echo "make test-all all tests with all examples, as before a release"
	@echo "make test-lowest  all tests with the lowest versions that pyproject.toml allows, in .venv-lowest (gigabytes)"
	@echo "make test-python PYTHON=...  the tests on another Python, without torch, in .venv-python"
	@echo "make package  build wheel and sdist, check them, and run the demo from the wheel in .venv-package"
	@echo "make check    ruff and mypy, as CI runs them"
	@echo "make format   ruff format and safe fixes"
	@echo "make bench    the benchmark tables (an hour)"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make install  only set up .venv"
	@echo "make clean    remove all environments, caches and build results"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit('tierank needs Python 3.11 or newer, this is ' + sys.version.split()[0]) if sys.version_info < (3, 11) else None"
	$(PYTHON) -m venv .venv
	$(BIN)/pip $(INSTALL) $(PIP)
	$(BIN)/pip $(INSTALL) -c constraints.txt -e . --group dev
	@touch $(READY)

install: $(READY)

demo: $(READY)
	$(BIN)/tierank demo

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile

# Properties are tested with five times as many random examples.
test-all: $(READY)
	$(BIN)/pytest -n auto --dist loadfile --hypothesis-profile all

# Old versions warn about what newer ones removed, so warnings are not errors here.
test-lowest: .venv-lowest/.ready
	.venv-lowest/bin/pytest -n auto --dist loadfile -W default

.venv-lowest/.ready: pyproject.toml tests/lowest_versions.py
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tests/lowest_versions.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/pip $(INSTALL) -r .venv-lowest/lowest.txt
	.venv-lowest/bin/pip $(INSTALL) --no-deps -e .
	@touch $@

# Another Python, without torch and the libraries of the benchmarks: make test-python PYTHON=python3.13
test-python:
	$(PYTHON) -m venv .venv-python
	.venv-python/bin/pip $(INSTALL) $(PIP)
	.venv-python/bin/pip $(INSTALL) -e . --group test
	.venv-python/bin/pytest -n auto --dist loadfile -W default

# Build wheel and sdist, check them, and run the demo from the wheel in an empty environment.
package: .venv/.ready-package
	rm -rf dist .venv-package
	$(BIN)/python -m build --outdir dist > /dev/null
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(PYTHON) -m venv --without-pip .venv-package
	$(BIN)/pip --python .venv-package/bin/python $(INSTALL) -c constraints.txt dist/*.whl
	cd .venv-package && bin/tierank demo --queries 20 --jobs 1 --out demo > /dev/null

.venv/.ready-package: $(READY)
	$(BIN)/pip $(INSTALL) -c constraints.txt -e . --group package
	@touch $@

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python -m benchmarks.readers
	$(BIN)/python -m benchmarks.metrics
	$(BIN)/python -m benchmarks.gradients
	$(BIN)/python -m benchmarks.trees
	$(BIN)/python -m benchmarks.networks
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.contract
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.export
	$(BIN)/python -m benchmarks.scale

# NO_MKDOCS_2_WARNING hides Material's notice about later versions of MkDocs.
docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.venv/.ready-docs: $(READY)
	$(BIN)/pip $(INSTALL) -c constraints.txt -e . --group docs
	@touch $@

clean:
	rm -rf .venv .venv-lowest .venv-python .venv-package dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
