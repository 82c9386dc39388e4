"""Runs of MLflow that a training function starts: children of its trial's run.

They are runs of their own. In the run of the trial, a parameter that the function logs could have another
value already, and MLflow refuses that.
"""

import json
import os
import time
from contextlib import suppress

from automl.base.loading import sources
from automl.storage.storage import Storage
from automl.tracking.names import PARENT

FILE = "mlflow.json"  # MLflow's environment of a trial, in the folder of the trial
PATIENCE = 30.0  # time that the run of the trial may take to appear [s]
EXPERIMENT, ID, TAGS = "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "MLFLOW_RUN_CONTEXT"


def announce(folder: Storage, experiment: str, run_id: str) -> None:
    """Write where the trial in `folder` starts runs, for `join_runs` in its process."""
    environment = {EXPERIMENT: experiment, TAGS: json.dumps({PARENT: run_id})}
    folder.write(FILE, json.dumps(environment).encode())


def join_runs(folder: Storage, function: str) -> None:
    """Make MLflow start runs in this process as children of the run of the trial in `folder`.

    The run is written by the search meanwhile. Wait for it if the files of the function name MLflow.
    """
    for name in (
        EXPERIMENT,
        ID,
        TAGS,
    ):  # those of the last trial, or of a script with `mlflow.set_experiment`
        os.environ.pop(name, None)
    uses_mlflow = any(b"mlflow" in content for content in sources(function))
    until = time.monotonic() + PATIENCE * uses_mlflow
    while not folder.exists(FILE) and time.monotonic() < until:
        time.sleep(0.05)
    with suppress(OSError):
        os.environ.update(json.loads(folder.read(FILE)))
