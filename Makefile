# Everything runs in .venv, which `make` creates; a fresh machine needs Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check docs prose fix tour backbones-table bench bench-search bench-cluster bench-time-ratio bench-gpu findings

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python"; exit 2; }
	@echo "installing into .venv; PyTorch and Ray take a few minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $@

# The main job on data that comes with the installation: search, export the best, predict one image, report.
demo: setup
	$(BIN)/python -m automl.search --space digits --trials 12 --name demo-$$(date +%Y%m%d-%H%M%S)
	$(BIN)/automl export --best --out exports/demo
	$(BIN)/automl predict exports/demo docs/seven.png
	$(BIN)/automl report

# No more than two at once: searches start their own Ray. tests/conftest.py has the order.
test: setup
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --no-warn-return-any benchmarks scripts
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(MAKE) docs

# The documentation site, into site/: a broken link or a page that is not in the navigation is an error.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Names, docstrings, messages and documents against the rules of plain English. Words: scripts/prose_words.py.
prose: setup
	$(BIN)/python scripts/prose.py
	$(BIN)/python scripts/api_docstrings.py

fix: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# docs/tour.ipynb, from top to bottom with its outputs. A few minutes on two cores.
tour: setup
	$(BIN)/python scripts/tour.py

# Writes docs/explanation/findings.md: where attention helps on Imagenette, whose archive DATA names. Hours; goes on where it was
# ended. FINDINGS may hold options of the script, such as those of the page that is there (45 minutes on two cores):
# make findings DATA=imagenette2-128.tgz FINDINGS="--subset 0.2 --trials 24 --top 1"
findings: setup
	$(BIN)/python scripts/findings.py --data $(DATA) $(FINDINGS)

# Writes docs/reference/backbones.md: what works on more than a hundred models. Two hours on two cores; can be resumed.
backbones-table: setup
	$(BIN)/python scripts/backbones_table.py

# Ratios against what one would use instead, interleaved, into benchmarks/results. About 15 minutes on two
# cores; leave the machine alone meanwhile. `quality` needs the archive that AUTOML_TEST_DATA names.
bench: setup
	@for name in attention resolution step data overhead quality larnn; do \
		echo "benchmarks/bench_$$name.py"; $(BIN)/python benchmarks/bench_$$name.py || exit 1; done

# The search itself: the regret of what is found on planted and recorded tables, what branches from trained
# trunks tell of trainings from scratch, and a thousand trials. About an hour on two cores.
bench-search: setup
	@for name in placements fidelity scale; do \
		echo "benchmarks/bench_$$name.py"; $(BIN)/python benchmarks/bench_$$name.py || exit 1; done
	$(BIN)/python benchmarks/draw_placements.py

# One driver of 512 slots whose trainings are played, on a Ray of 64 node managers on this machine: about seven
# minutes and 13 GB.
bench-cluster: setup
	$(BIN)/python benchmarks/bench_cluster.py

# Whether the measured ratio of two epochs' times can be believed beside busy processes. About half an hour.
bench-time-ratio: setup
	$(BIN)/python benchmarks/bench_time_ratio.py

# `bench` on a machine with a GPU and no installation of ours: torch, torchvision, pyarrow and fastai, and
# timm where it is there.
bench-gpu:
	@for name in attention resolution step data packing; do \
		echo "benchmarks/bench_$$name.py"; PYTHONPATH=. $(PYTHON) benchmarks/bench_$$name.py || exit 1; done
