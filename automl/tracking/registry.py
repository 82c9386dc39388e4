"""MLflow's model registry: an exported model as a version, and the alias that names it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlflow
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException

from automl.base.errors import InputError
from automl.base.escape import redact
from automl.tracking.client import open_client


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
