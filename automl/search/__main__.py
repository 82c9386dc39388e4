"""`python -m automl.search ...` is `automl search ...`."""

from automl.cli.main import run, search_alone

run(program=search_alone, name="python -m automl.search")
