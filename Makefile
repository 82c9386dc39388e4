# Everything runs in .venv, which `make` creates; a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
# Many containers forbid bytecode. Each of the hundreds of processes would then compile torch again, for five seconds.
unexport PYTHONDONTWRITEBYTECODE
QUIET := --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: setup demo test test-all quick test-hosts test-gpu durations mutants check types style house docs prose fix tour backbones-table attention-table bench bench-search bench-cluster bench-time-ratio bench-gpu findings language-findings

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python"; exit 2; }
	@echo "installing into .venv: 7 GB, most of it PyTorch"
	$(PYTHON) -m venv .venv
	@# uv takes a small part of pip's time, as it leaves Python to compile what is imported. pip is the fallback: it also
	@# knows the indexes of pip.conf.
	( $(BIN)/python -m pip install $(QUIET) uv && $(BIN)/uv pip install --python $(BIN)/python --system-certs --quiet \
		--editable '.[dev]' --constraint constraints.txt ) || \
		$(BIN)/python -m pip install $(QUIET) --editable '.[dev]'
	@touch $@

# The main job where the placement of attention decides: a search, its verdict, the exported winner, a report.
demo: setup
	$(BIN)/python -m automl.search --space lookup --trials 32 --confirm --top 1 --seeds 6 --name demo-$$(date +%Y%m%d-%H%M%S)
	$(BIN)/automl export --best --out exports/demo
	$(BIN)/automl predict exports/demo docs/images/lookup.png
	$(BIN)/automl report
	@echo "Where nothing is to be found, the verdict says so: $(BIN)/automl search --space digits --confirm"

# Three processes on two cores, as much of a test's time is waiting for processes that it started, such as a
# search's own Ray. tests/helpers/durations.py has the order.
SUITE := $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: setup
	$(SUITE) --ignore tests/house

# The slow tests, too. More than an hour.
test-all: setup
	AUTOML_LONG=1 $(SUITE)

# The tests that take less than 0.2 s, in two minutes.
quick: setup
	$(SUITE) --ignore tests/house --quick

# A cluster of hosts on this machine and their faults. Needs root on Linux, or skips with the reason. HOSTS_TIMES=10
# repeats each fault, and HOSTS_RECORD=FILE keeps a line of JSON for each.
test-hosts: setup
	AUTOML_LONG=1 $(BIN)/python -m pytest tests/end_to_end/test_hosts.py -rs

# Write tests/helpers/durations.json, from which order and selection follow on a fresh clone.
durations: setup
	$(SUITE) --ignore tests/house --save-durations

# Apply small faults, one at a time, and see that the nearest tests find each.
mutants: setup
	$(BIN)/python scripts/mutants.py

# The tests of every mode that names a GPU, without `make setup`. About five minutes on one H100.
test-gpu:
	@PYTHONPATH=$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH} $(or $(wildcard $(BIN)/python),$(PYTHON)) -m pytest -m gpu --numprocesses 4 --dist loadfile \
		$$(grep -rlE "mark\.gpu|TaskTestCase" tests --include="test_*.py")

# They run side by side.
check: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync types style house

types: setup
	$(BIN)/mypy
	$(BIN)/mypy --no-warn-return-any benchmarks scripts

style: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/codespell
	@$(MAKE) --no-print-directory docs prose

# Tests of the words, the structure and the documents of this project.
house: setup
	$(BIN)/python -m pytest --quiet tests/house

# Build the documentation site in site/. A broken link or a page outside the navigation is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Check names, docstrings, messages and documents for plain English. scripts/prose_words.py has the words.
prose: setup
	$(BIN)/python scripts/prose.py
	$(BIN)/python scripts/api_docstrings.py

fix: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Run docs/tour.ipynb and save its outputs. A few minutes on two cores.
tour: setup
	$(BIN)/python scripts/tour.py

# Write docs/explanation/findings.md, where attention helps on Imagenette. DATA is its archive. Takes hours, and
# continues after an interruption. FINDINGS has options of the script. The page was made with (45 minutes on two cores):
# make findings DATA=imagenette2-128.tgz FINDINGS="--subset 0.2 --trials 24 --top 1"
findings: setup
	$(BIN)/python scripts/findings.py --data $(DATA) $(FINDINGS)

# Write docs/explanation/language-findings.md, which layers of a decoder need full attention. More than an hour on
# two cores; it continues after an interruption. LANGUAGE has options of the script.
language-findings: setup
	$(BIN)/python scripts/language_findings.py $(LANGUAGE)

# Write docs/reference/backbones.md, checks of more than a hundred models. Two hours on two cores; can be resumed.
backbones-table: setup
	$(BIN)/python scripts/backbones_table.py

# Write docs/reference/timm-attention.md, the checks of timm's attention modules. Two minutes on two cores.
attention-table: setup
	$(BIN)/python scripts/attention_contract_table.py

# Compare speed with other libraries, interleaved, and write benchmarks/results. About 15 minutes on two idle
# cores. `quality` needs the archive in AUTOML_TEST_DATA.
bench: setup
	@for name in attention causal resolution step augment language data overhead quality; do \
		echo "benchmarks/bench_$$name.py"; $(BIN)/python benchmarks/bench_$$name.py || exit 1; done

# Measure the search: its regret on planted and recorded tables, how well continued trainings predict
# trainings from scratch, ten thousand trials, and associative recall. More than an hour on two cores.
bench-search: setup
	@for name in placements fidelity scale solve; do \
		echo "benchmarks/bench_$$name.py"; $(BIN)/python benchmarks/bench_$$name.py || exit 1; done
	$(BIN)/python benchmarks/bench_scale.py --driver
	$(BIN)/python benchmarks/bench_recall.py table
	$(BIN)/python benchmarks/bench_layers.py
	$(BIN)/python benchmarks/bench_free.py
	$(BIN)/python benchmarks/bench_recall.py search
	$(BIN)/python benchmarks/draw_placements.py

# Measure one driver of 512 slots with simulated trainings, on a Ray of 64 node managers on this machine. About
# seven minutes and 13 GB.
bench-cluster: setup
	$(BIN)/python benchmarks/bench_cluster.py

# Measure the error of time ratios beside busy processes. About half an hour.
bench-time-ratio: setup
	$(BIN)/python benchmarks/bench_time_ratio.py

# Measure a GPU against torch's kernels, timm and plain loops, alone and shared, without `make setup`. About eight
# minutes. Needs what a search needs, and timm.
bench-gpu:
	@for name in causal gpu sharing; do \
		echo "benchmarks/bench_$$name.py"; PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) benchmarks/bench_$$name.py || exit 1; done
