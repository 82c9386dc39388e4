"""`python -m automl.search ...` is `python -m automl search ...`."""

import runpy
import sys

sys.argv.insert(1, "search")
runpy.run_module("automl", run_name="__main__", alter_sys=True)
