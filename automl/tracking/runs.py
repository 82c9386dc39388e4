"""Find the runs of trials and searches in MLflow, log reports to them, and register models."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.base.options import format_command
from automl.storage.storage import Storage
from automl.tracking.client import find_runs, open_client, pages, without_twin
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


@dataclass(frozen=True, kw_only=True)
class Registered:
    """Version of a model in MLflow's registry. `alias` refers to it until another version gets the alias."""

    name: str
    version: str
    alias: str

    @property
    def uri(self) -> str:
        """Return the address by which MLflow loads and serves the model."""
        return f"models:/{self.name}@{self.alias}"


@without_twin()
def check_registry(name: str, alias: str) -> None:
    """Raise InputError if MLflow would reject the name or alias of a model."""
    client = open_client()
    # MLflow checks the alias only when it is set, after the version was created.
    if not re.fullmatch(r"[\w-]{1,255}", alias, re.ASCII) or re.fullmatch(r"(?i)latest|v\d+", alias):
        raise InputError(
            f"--alias must consist of letters, digits, _ and -, and not be `latest` or v and a number, which "
            f"are MLflow's own; got {alias!r}"
        )
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise InputError(
                f"MLflow does not take {name!r} as the name of a model: {redact(str(error))}"
            ) from error
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise InputError(
                f"MLflow's model registry at {redact(mlflow.get_registry_uri())} does not answer; correct or "
                f"unset MLFLOW_REGISTRY_URI. ({redact(str(error))})"
            ) from error


@without_twin()
def register(
    folder: Path, run_id: str, name: str, alias: str, *, description: str, tags: Mapping[str, str]
) -> Registered:
    """Register the MLflow model in `folder` as a new version of `name`, and give it the alias.

    The files are copied to the artifact store, and belong to the run. Raise InputError if MLflow rejects them
    or does not answer.
    """
    client = open_client()
    try:
        experiment = client.get_run(run_id).info.experiment_id
        # Each version has separate files, so a second export of a run keeps those of the first.
        model = client.create_logged_model(experiment, name="exported", source_run_id=run_id, tags=dict(tags))
        client.log_model_artifacts(model.model_id, str(folder))
        client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
        client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version = client.create_model_version(
            name,
            f"models:/{model.model_id}",
            run_id=run_id,
            tags=dict(tags),
            description=description,
            model_id=model.model_id,
        ).version
        client.set_registered_model_alias(name, alias, version)
    except (MlflowException, OSError) as error:
        raise InputError(f"MLflow did not register the model as {name!r} ({redact(str(error))})") from error
    return Registered(name=name, version=str(version), alias=alias)
