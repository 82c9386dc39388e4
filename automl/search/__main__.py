"""`python -m automl.search ...` is `automl search ...`."""

import sys

from automl.cli.main import run

run(["search", *sys.argv[1:]])
