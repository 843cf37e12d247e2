# On a fresh machine: `make demo`, `make openi DATA=FOLDER` (docs/openi.md), `make test`, `make docs`.
# `make real DATA=FOLDER` does several archives together (docs/real.md; REAL=--quick is short).
# Each builds .venv itself. `make demo DEMO=--quick` takes a minute and shows that everything runs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What is compiled at the first import is kept, whatever the shell's setting: without it each process
# compiles torch and transformers anew, which is longer than all else that their import does.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo openi real test check unit second-device wheel-check newcomer short dist docs format clean

demo: $(STAMP)
	$(BIN)/medclip-debias demo --out runs/demo $(DEMO)
	@echo "To give commands yourself: source $(BIN)/activate; what next: docs/start.md"

openi: $(STAMP)
	@test -n "$(DATA)" || { echo "Say where Open-i is: make openi DATA=/path/to/openi"; exit 1; }
	$(BIN)/python scripts/openi.py "$(DATA)" --out runs/openi

real: $(STAMP)
	@test -n "$(DATA)" || { echo "Say where the archives are: make real DATA=/path/to/archives"; exit 1; }
	$(BIN)/python scripts/real_job.py "$(DATA)" $(REAL)

# The short ones in turn beside the long one, whose tests wait for processes one second in seven:
# they take those seconds, and few others, so that nothing is left to do alone at the end.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(MAKE) --no-print-directory --jobs 2 --output-sync=line unit short

short: $(STAMP)
	nice -n 15 $(MAKE) --no-print-directory check second-device newcomer

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Two processes of one thread each: on two cores twice as fast as one process of two. Each begins with
# half of the tests in their order; one that is done takes from the other's end.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --durations 10

# What a GPU runs, on a second device that every machine has. In a process of its own: with it, as with
# CUDA, autograd bears no fork.
second-device: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/training/on_second_device.py

# README.md and docs/start.md followed to the letter with the wheel, which is checked first, short and
# without a network (scripts/newcomer.py alone: the whole, anew). wheel-check: the wheel alone.
wheel-check: $(STAMP)
	$(BIN)/python scripts/wheel_check.py

newcomer: $(STAMP)
	$(BIN)/python scripts/newcomer.py --quick

dist: $(STAMP)
	rm -rf runs/dist
	$(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir runs/dist .

# The lock has no tool for pages: they are added at their newest, and change nothing that it holds.
docs: $(STAMP)
	$(BIN)/python -c 'import mkdocs, material, mkdocstrings' 2>/dev/null \
		|| $(BIN)/uv pip install --quiet --python $(BIN)/python --constraints requirements.lock \
			-e '.[docs]'
	$(BIN)/python -m mkdocs build --strict
	@echo "runs/site/index.html; to search in it: $(BIN)/python -m http.server -d runs/site"

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The lock holds everything, so no resolver runs: --no-deps also keeps another torch build out, and
# hashes any file but those that were locked. pip and uv themselves come from the lock, too.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/it"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	awk '/^[^ ]/ { wanted = /^(pip|uv)==/ } wanted' requirements.lock > $(VENV)/installers.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		-r $(VENV)/installers.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes \
		-r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs
