# Every target sets itself up in .venv, from nothing but Python (3.11 or newer) and make.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests in clones and copies of the source share compiled kernels (their folders are named by source and processor): compiling all
# of them takes minutes.
test test-slow check claims house: export NUMBA_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/antembed/kernels

.PHONY: demo test test-slow test-portable test-bounds fuzz guided-fuzz torture claims house lint check bench bench-large readme format clean

# constraints.txt pins torch to a release with a CPU build: a range would bring gigabytes of CUDA.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: .venv/ready  ## the main job on embedded data, in about a minute
	$(BIN)/antembed demo

test: .venv/ready  ## all tests but the slow ones
	$(BIN)/pytest -m "not slow" -n 2 --dist loadfile

test-slow: .venv/ready  ## the slow tests alone
	$(BIN)/pytest -m slow -n 2 --dist loadfile

test-portable: .venv/ready  ## all tests as on other processors and with other threads (an hour; SETTINGS= for some)
	$(BIN)/python tests/portable.py

test-bounds: .venv/ready  ## the tests of what calls kernels, compiled with bounds checks
	ANTEMBED_BOUNDSCHECK=1 $(BIN)/pytest -m "not slow" -n 2 --dist loadfile tests/native tests/layer tests/recommend tests/tables tests/data

torture: .venv/ready  ## 500 kills of every command, counts appended to results/reliability.jsonl (an hour; SEED=1, KILLS=60)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --kills $(or $(KILLS),500) --seed $(or $(SEED),0) --record results/reliability.jsonl

fuzz: .venv/ready  ## 20 000 mutated files of every kind, counts appended to results/reliability.jsonl (minutes; SEED=1 for others)
	$(BIN)/python -m tests.mutations --seed $(or $(SEED),0) --record results/reliability.jsonl
	$(BIN)/python -m tests.run_mutations --seed $(or $(SEED),0) --record results/reliability.jsonl
	ANTEMBED_BOUNDSCHECK=1 $(BIN)/python -m tests.odd_tables --seed $(or $(SEED),0) --record results/reliability.jsonl

guided-fuzz: .venv/ready  ## coverage-guided fuzzing of the readers of files, SECONDS= (1800) for each of four
	$(BIN)/pip install --quiet 'atheris>=3'
	for reader in table ngrams csv labels; do \
	$(BIN)/python -m tests.guided_fuzz $$reader --seconds $(or $(SECONDS),1800) --record results/reliability.jsonl || exit 1; done

claims: .venv/ready  ## run again what README and guides claim; fails on a loss (QUICK=1: ten minutes; DATA=FOLDER)
	$(BIN)/python -m experiments claims $(if $(QUICK),--quick) $(if $(DATA),--data $(DATA)) $(if $(ONLY),--only '$(ONLY)')

house: .venv/ready  ## the plan of the source beside the ceilings of house.toml (UPDATE=1 lowers them to what is there now)
	$(BIN)/python -m experiments house $(if $(UPDATE),--update)

lint: .venv/ready  ## lint, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check: lint  ## lint, format, types, all tests with warnings as errors
	$(BIN)/pytest -n 2 --dist loadfile

.venv/ready-bench: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

bench: .venv/ready-bench  ## every figure a ratio against a peer, in results/ and in one table, docs/results/speed.md (quiet minutes)
	$(BIN)/python -m experiments bench step --record results/bench.jsonl
	$(BIN)/python -m experiments bench step --no-dense --busy 1 --record results/bench.jsonl
	$(BIN)/python -m experiments bench step_profile --record results/step-profile.jsonl
	$(BIN)/python -m experiments bench step_growth --record results/step-growth.jsonl
	$(BIN)/python -m experiments bench startup --record results/startup.jsonl
	$(BIN)/python -m experiments bench startup --cold --repeats 3 --record results/startup.jsonl
	$(BIN)/python -m experiments bench compress_large --record results/compress-large.jsonl
	$(BIN)/python -m experiments bench instructions --record results/instructions.jsonl
	$(BIN)/python -m experiments bench memory --record results/bench.jsonl
	$(BIN)/python -m experiments bench factorization recommend --record results/bench.jsonl
	$(BIN)/python -m experiments bench factorization recommend --busy 1 --record results/bench.jsonl
	$(BIN)/python -m experiments bench from_csv --record results/bench.jsonl
	$(BIN)/python -m experiments bench text_step --record results/text-step.jsonl
	$(BIN)/python -m experiments figures step-growth.svg
	$(BIN)/python -m experiments tables docs/results/speed.md

bench-large: .venv/ready  ## tables of up to 58.7 million rows: 20 GB of memory, some twenty minutes
	$(BIN)/python -m experiments bench factorization growth --repeats 2 --record results/bench.jsonl
	$(BIN)/python -m experiments recipe recipes/amazon.toml --record results/bench.jsonl
	$(BIN)/python -m experiments bench large_text --record results/large-text.jsonl

readme: .venv/ready  ## fill the tables and draw the figures of README.md and docs/ from results/
	$(BIN)/python -m experiments tables
	$(BIN)/python -m experiments figures

format: .venv/ready  ## put the source in its usual form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests experiments -name __pycache__ -prune -exec rm -rf {} +
