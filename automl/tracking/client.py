"""The connection to MLflow."""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import mlflow
from mlflow.environment_variables import MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR as BAR
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT as TIMEOUT
from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT as QUIET
from mlflow.store.tracking import DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH

from automl.base.atomic import locked, replacing, sweep
from automl.base.errors import InputError, error_message
from automl.base.escape import mlflow_value, redact
from automl.storage.storage import local_path
from automl.tracking.tracker import MlflowSilent

LOCAL = "http://127.0.0.1:5000"  # where `mlflow ui` listens
LIMIT = 20.0  # time limit of the first answer, unless MLFLOW_HTTP_REQUEST_TIMEOUT is set [s]
NEWS = 2.0  # time after which a message about the wait is printed [s]
MEMORY = 60.0  # time during which a silent server is not contacted again [s]

_silent: dict[str, float] = {}  # time of the last timeout of each server, on the monotonic clock [s]


def open_client(*, create: bool = False) -> Any:
    """Return MLflow's client, once the store behind it has answered.

    create: create a database file that does not exist. MLflow always does, but a program that only reads
        must not.

    Raises InputError if it does not answer, and MlflowSilent if it takes longer than the limit.
    """
    uri = redact(mlflow.get_tracking_uri())
    file = local_path(mlflow.get_tracking_uri())
    if not create and file is not None and not file.exists():
        raise InputError(
            f"MLflow at {uri} has no runs, as there is no such file; run this where the search ran, or set "
            f"MLFLOW_TRACKING_URI"
        )
    QUIET.set(True)  # standard output is ours
    BAR.set(False)  # what is read of a run is a few lines
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # that a database is made is no news
    if RETRIES.get_raw() is None:
        RETRIES.set(1)  # a server that is not there shall be missed in seconds, not minutes; we try again
    limit = LIMIT if TIMEOUT.get_raw() is None else float(TIMEOUT.get())
    TIMEOUT.set(max(1, round(limit)))  # of later requests
    try:
        if file is None:
            return _answering_client(uri, limit)
        if create and mlflow.get_tracking_uri().startswith("sqlite:") and file.parent.is_dir():
            _create_database(file.resolve())
        return _client()
    except InputError:
        raise
    except Exception as error:
        reason = redact(error_message(error))[:200]
        raise InputError(
            f"MLflow at {uri} does not answer; start the server, or correct or unset MLFLOW_TRACKING_URI. "
            f"({type(error).__name__}: {reason})"
        ) from error


def _tracking_uri() -> str:
    """Return MLflow's address of its store, with the path of a file quoted where it must be."""
    uri: str = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite:"):
        return uri
    _, mark, options = uri.partition("?")
    return _sqlite_address(str(local_path(uri))) + mark + options


def _sqlite_address(path: str) -> str:
    return "sqlite:///" + path.replace("%", "%25").replace("?", "%3F")


@contextmanager
def without_twin(address: str | None = None) -> Iterator[None]:
    """Remove the empty folders that MLflow creates in the block, as it takes a quoted path literally."""
    folder = Path((address or _tracking_uri()).partition("?")[0].removeprefix("sqlite:///")).parent
    missing = [above for above in (folder, *folder.parents) if not above.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # it was not created, or is the folder of the database
            for above in missing:
                above.rmdir()


def _client() -> Any:
    address = _tracking_uri()
    with without_twin(address):
        client = mlflow.MlflowClient(address)
        client.search_experiments(max_results=1)
    return client


def _create_database(file: Path) -> None:
    """Create MLflow's tables if there are none, atomically and by a single process."""
    # MLflow itself does not lock: if two processes create them, one or both fail.
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # takes a second

    if _has_content(file):
        return
    with locked(file):
        if not _has_content(file):
            sweep(file.parent, file.name)
            with replacing(file) as new:
                # Use an address, as MLflow inserts it into SQL without escaping quotes of the folder.
                artifacts = Path(DEFAULT_LOCAL_FILE_AND_ARTIFACT_PATH).resolve().as_uri()
                address = _sqlite_address(str(new))
                with without_twin(address):
                    SqlAlchemyStore(address, artifacts).engine.dispose()


def _has_content(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def _answering_client(uri: str, limit: float) -> Any:
    """Return the client of a server that answers within `limit` seconds."""
    # The request runs in a thread that may be abandoned, since a server that sends a byte now and then
    # prevents timeouts of HTTP.
    if time.monotonic() - _silent.get(uri, -MEMORY) < MEMORY:
        raise _silence(uri, limit)
    answer: Future[Any] = Future()

    def ask() -> None:
        try:
            answer.set_result(_client())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="mlflow-first-contact", daemon=True).start()
    if wait([answer], timeout=min(NEWS, limit)).not_done:
        print(f"waiting for MLflow at {uri}, {limit:g} s at most", file=sys.stderr, flush=True)
        if wait([answer], timeout=max(0.01, limit - NEWS)).not_done:
            _silent[uri] = time.monotonic()
            raise _silence(uri, limit)
    return answer.result()


def _silence(uri: str, limit: float) -> MlflowSilent:
    return MlflowSilent(
        f"MLflow at {uri} does not answer within {limit:g} s; restart the server, or correct or unset "
        f"MLFLOW_TRACKING_URI; MLFLOW_HTTP_REQUEST_TIMEOUT sets another limit"
    )


def find_experiment(client: Any, name: str) -> str | None:
    """Return the ID of the experiment, or None if it does not exist. Raise InputError if it was deleted."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return None
    identifier = str(experiment.experiment_id)
    if experiment.lifecycle_stage != "active":
        raise InputError(
            f"the experiment {name!r} of MLflow at {redact(client.tracking_uri)} was deleted. Restore it: "
            f"mlflow experiments restore --experiment-id {identifier}; or delete it for good: mlflow gc "
            f"--experiment-ids {identifier}"
        )
    return identifier


def pages(client: Any) -> str:
    """Return the address of MLflow's pages: the server, or `mlflow ui` on this machine."""
    uri = redact(client.tracking_uri)
    return uri.rstrip("/") if uri.startswith(("http://", "https://")) else LOCAL


def artifact_location(experiment: str) -> str | None:
    """Return the address of a new experiment's artifacts: beside the database, if that is a file.

    MLflow would put them into the current folder, which for a job on a cluster is another one.
    """
    uri = mlflow.get_tracking_uri()
    database = local_path(uri) if uri.startswith("sqlite:") else None
    return None if database is None else (database.resolve().parent / "mlruns" / experiment).as_uri()


def find_runs(client: Any, experiments: Sequence[str] | None, tags: Mapping[str, str]) -> Iterator[Any]:
    """Yield the runs that have all of these tags, with any quotes in their values.

    `experiments` are the IDs of those that are searched. None searches all.

    MLflow's filters have no escape character, so a value with a quote is matched by LIKE, with `_` for any
    character, and the results are compared.
    """
    tags = {name: mlflow_value(value) for name, value in tags.items()}
    if experiments is None:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    query, token = tag_filter(tags), None
    while token != "":
        runs = client.search_runs(list(experiments), query, max_results=1000, page_token=token)
        yield from (run for run in runs if tags.items() <= run.data.tags.items())
        token = runs.token or ""


def tag_filter(tags: Mapping[str, str]) -> str:
    """Return MLflow's filter for the runs with these tags. It may match more runs; see `find_runs`."""
    parts = []
    for name, value in tags.items():
        comparison = "LIKE" if "'" in value else "="
        parts.append(f"tags.`{name}` {comparison} '{value.replace(chr(39), '_')}'")
    return " and ".join(parts)
