"""`python -m automl.search ...` is `automl search ...`."""

import sys

from automl.cli.main import main

main(["search", *sys.argv[1:]])
