# Each target sets up .venv by itself. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 1
# Small tensors: on a busy machine several threads spend their time waiting for each other.
export OMP_NUM_THREADS ?= 1

.PHONY: book test notebooks bench lint clean help

help:
	@echo "make book       environment, executed chapters, HTML in _build/html"
	@echo "make test       environment, book if it is not built, lint, types, pytest, pytest --nbval"
	@echo "make notebooks  execute the chapters and write book/*.ipynb and the ledger"
	@echo "make bench      the benchmarks, each against its plain counterpart"
	@echo "make clean      remove what was built (.venv stays; remove it by hand)"

.venv/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

book: .venv/.ready
	$(BIN)/python tools/build.py html --jobs $(JOBS)

_build/html/index.html: .venv/.ready
	$(BIN)/python tools/build.py html --jobs $(JOBS)

notebooks: .venv/.ready
	$(BIN)/python tools/build.py notebooks --jobs $(JOBS)

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint _build/html/index.html
	$(BIN)/python -m pytest --numprocesses=2
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=600 --numprocesses=2 --dist=loadfile book

bench: .venv/.ready
	$(BIN)/python -m benchmarks

clean:
	rm -rf _build build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
