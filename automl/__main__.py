"""`python -m automl` is `automl`."""

from automl.cli.main import run

run()
