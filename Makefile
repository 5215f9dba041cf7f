# make demo: the whole chain in a few minutes.   make test: everything CI checks.   make docs: the site, in docs/_build/html.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS = 1

.PHONY: demo test lint format docs clean

demo: .venv/ready
	$(BIN)/counterpoint demo

test: lint
	$(BIN)/pytest -n 2

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

docs: .venv/ready
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs . docs/_build/html

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and alone: a plain requirement of it would bring gigabytes of CUDA packages to a machine without a GPU
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf .venv runs docs/_build .pytest_cache .ruff_cache
