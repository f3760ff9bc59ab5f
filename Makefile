# Two commands matter: `make run` does the main job, `make test` checks it. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TESTS ?=

.PHONY: setup run test test-slow mutants zoo lint types bench docs clean

setup: $(STAMP)

# One pinned environment for everything but the benchmarks' peers. What is downloaded must have the hash that is written down; torch,
# whose builds differ by machine, and dperm itself have none, and are installed after that, by programs that have.
$(STAMP): pyproject.toml constraints.txt requirements.txt
	$(PYTHON) -m venv $(VENV) || { echo "No venv module: on Debian or Ubuntu run 'apt-get install python3-venv'." >&2; exit 1; }
	$(PIP) install --require-hashes --no-deps --requirement requirements.txt
	$(PIP) install --no-build-isolation --constraint constraints.txt --editable ".[test,torch]"
	touch $(STAMP)

run: setup
	DPERM_SPEND_LOG=$${DPERM_SPEND_LOG:-out/spend.db} $(BIN)/dperm compare --repeats 20 --output out/report.html

test: setup lint types
	$(BIN)/python -m pytest -n auto -m "not slow" $(TESTS)

test-slow: setup
	$(BIN)/python -m pytest -n auto $(TESTS)

# Small faults planted one at a time, and the fast tests that reach each: see CONTRIBUTING.md. FILES: patterns of files under
# src/dperm, or paths of them; SHARD=1/4: a part; MUTANTS: other options. What was found is kept in out/mutants/.
FILES ?=
SHARD ?= 1/1
MUTANTS ?=
mutants: setup
	$(BIN)/python tests/mutants/run.py --shard $(SHARD) $(MUTANTS) --files $(FILES)

# Other libraries' architectures, in an environment of their own: tested, and listed in docs/architectures.md.
zoo: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-zoo
	$(VENV)-zoo/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable ".[test,torch,zoo]"
	$(VENV)-zoo/bin/python docs/build_architectures.py
	$(VENV)-zoo/bin/python -m pytest -n auto tests/torch/engine/test_architectures.py tests/torch/integrations

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/pyright --warnings

# The peers (Opacus, which needs PyTorch) go into an environment of their own.
bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-bench
	$(VENV)-bench/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt --editable ".[bench]"
	$(VENV)-bench/bin/python benchmarks/speed.py
	$(VENV)-bench/bin/python benchmarks/networks.py
	$(VENV)-bench/bin/python benchmarks/noise.py

docs: setup
	$(BIN)/python docs/build_api.py

clean:
	rm -rf $(VENV) $(VENV)-bench $(VENV)-zoo out build dist .pytest_cache .ruff_cache .hypothesis
