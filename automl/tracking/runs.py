"""Find the runs of trials and searches in MLflow, and log reports to them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.base.options import format_command
from automl.storage.storage import Storage
from automl.tracking.client import find_runs, open_client, pages
from automl.tracking.run_spec import CHECKPOINT, IDENTITY, PARENT, TRIAL


def find_trial_run(identity: str, number: int, checkpoint: Storage | None = None) -> str:
    """Return the ID of the run of a trial. `identity` is that of its search or confirmation.

    It is empty for a training, which its `checkpoint` tells. Raise InputError if MLflow does not answer or
    has no such run.
    """
    tags = {TRIAL: str(number)} if identity else {CHECKPOINT: str(checkpoint)}
    for run in _trial_runs(open_client(), identity, tags):
        return str(run.info.run_id)
    raise InputError(f"MLflow at {redact(mlflow.get_tracking_uri())} has no run of it")


def _trial_runs(client: Any, identity: str, tags: Mapping[str, str]) -> Iterator[Any]:
    """Yield the runs with these tags that belong to trials of the search or confirmation `identity`."""
    try:
        parents = find_runs(client, None, {IDENTITY: identity}) if identity else [None]
        for parent in parents:
            above = {} if parent is None else {PARENT: parent.info.run_id}
            for run in find_runs(client, None, {**above, **tags}):
                if TRIAL in run.data.tags:
                    yield run
    except MlflowException as error:
        uri = redact(mlflow.get_tracking_uri())
        raise InputError(f"MLflow at {uri} does not answer ({redact(str(error))})") from error


def trial_links(identity: str) -> dict[int, str]:
    """Return the address of the MLflow page of each trial of a search, by number. Missing runs are left out.

    Raise InputError if MLflow does not answer.
    """
    client = open_client()
    return {
        int(run.data.tags[TRIAL]): (
            f"{pages(client)}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"
        )
        for run in _trial_runs(client, identity, {})
    }


def log_report(identity: str, name: str, storage: str, folder: Path, files: Sequence[str]) -> str:
    """Log `files` of `folder` to the run of the search `name`, below `report/`. Return the run's ID.

    Raise InputError if MLflow does not answer, has no such run, or rejects them.
    """
    client = open_client()
    run = next(find_runs(client, None, {IDENTITY: identity}), None)
    if run is None:
        raise InputError(
            f"MLflow at {redact(mlflow.get_tracking_uri())} has no run of search {name!r}; run this "
            f"where the search ran or set MLFLOW_TRACKING_URI, or write the search there: "
            f"{format_command('sync', name, storage)}"
        )
    run_id = str(run.info.run_id)
    try:
        for file in files:
            client.log_artifact(run_id, str(folder / file), str(Path("report", file).parent))
    except Exception as error:  # artifact stores raise various errors
        raise InputError(f"MLflow did not take it ({type(error).__name__}: {redact(str(error))})") from error
    return run_id
