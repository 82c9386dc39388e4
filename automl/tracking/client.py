"""The connection to MLflow."""

import logging
from typing import Any

import mlflow
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES
from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT as QUIET

from attention import InputError
from automl.storage.addresses import public
from automl.storage.working_dir import local_path

LOCAL = "http://127.0.0.1:5000"  # where `mlflow ui` listens


def open_client(*, create: bool = False) -> Any:
    """MLflow's client, once the store behind it has answered. Raises InputError when it does not.

    create: make the database where it is a file that is not there, as MLflow does whoever asks: what reads
        alone shall leave none behind.
    """
    uri = public(mlflow.get_tracking_uri())
    file = local_path(mlflow.get_tracking_uri())
    if not create and file is not None and not file.exists():
        raise InputError(
            f"MLflow at {uri} has no runs, as there is no such file; run this where the search ran, or set "
            f"MLFLOW_TRACKING_URI"
        )
    QUIET.set(True)  # standard output is ours
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # that a database is made is no news
    if RETRIES.get_raw() is None:
        RETRIES.set(1)  # a server that is not there shall be missed in seconds, not minutes; we try again
    try:
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    except Exception as error:
        reason = public(str(error).strip().splitlines()[0])[:200]
        raise InputError(
            f"MLflow at {uri} does not answer; start the server, or correct or unset MLFLOW_TRACKING_URI. "
            f"({type(error).__name__}: {reason})"
        ) from error
    return client


def pages(client: Any) -> str:
    """Where MLflow's pages are: at the server, or at `mlflow ui` on this machine."""
    uri = public(client.tracking_uri)
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else LOCAL


def artifact_location(experiment: str) -> str | None:
    """Where a new experiment's artifacts go: beside the database, where that is a file.

    MLflow would put them into the current folder, which for a job on a cluster is another one.
    """
    uri = mlflow.get_tracking_uri()
    database = local_path(uri) if uri.startswith("sqlite:") else None
    return None if database is None else str(database.resolve().parent / "mlruns" / experiment)


def experiments(client: Any) -> list[str]:
    """The ids of all experiments, where runs are looked for."""
    return [experiment.experiment_id for experiment in client.search_experiments()]
