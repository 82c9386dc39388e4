"""What MLflow has: the run to export, the scores of a training, the run that a report belongs to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
from mlflow.exceptions import MlflowException

from attention import InputError
from automl.addresses import public
from automl.folder import About
from automl.settings import command
from automl.storage import Storage
from automl.tracking.client import experiments, open_client
from automl.tracking.tags import BEST, CHECKPOINT, CONFIRMED, IDENTITY, SEARCH, VERDICT
from search.config import TrialConfig
from search.record import State


@dataclass(frozen=True)
class TrackedRun:
    """A trial's run as MLflow has it. `checkpoint` is the folder of its file.

    search: the search that it was chosen from; None where the run itself was named.
    verdict: what the confirmation of that search found, in a sentence; None before there is one.
    confirmed: the run is the winner that the verdict speaks of.
    """

    run_id: str
    name: str
    checkpoint: Storage
    search: str | None = None
    verdict: str | None = None
    confirmed: bool = False

    @property
    def what(self) -> str:
        """Which run it is, in words."""
        if self.confirmed:
            return "confirmed winner"
        return "the run that was named" if self.search is None else "the search's best"

    @property
    def choice(self) -> str:
        """Which run it is, and why this one."""
        if self.confirmed:
            return f"{self.what}: {self.verdict}" if self.verdict else self.what
        found = f"confirmation found no winner: {self.verdict}" if self.verdict else "not confirmed"
        return f"{self.what}; {found}"


def find_run(run_id: str) -> TrackedRun:
    """The run of a trial. Raises InputError when there is no such run or it has no checkpoint."""
    client = open_client()
    found = _find_run(client, run_id)
    parents = client.search_runs(experiments(client), f"tags.`{CONFIRMED}` = '{run_id}'", max_results=1)
    if not parents:
        return found
    return replace(found, verdict=parents[0].data.tags.get(VERDICT), confirmed=True)


def _find_run(client: Any, run_id: str) -> TrackedRun:
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {run_id!r}; `mlflow ui` shows the runs there are") from error
    folder = run.data.tags.get(CHECKPOINT)
    if not folder:
        raise InputError(
            f"run {run_id} ({run.info.run_name}) has no checkpoint: it was not trained, or its search kept "
            f"only the best (--keep). Choose another run."
        )
    return TrackedRun(run_id, run.info.run_name, Storage(folder))


@dataclass(frozen=True)
class ScoredRun:
    """A training as MLflow has it: its configuration, its last metrics, the digest of its search's data."""

    config: TrialConfig
    metrics: Mapping[str, float]
    data: str | None = None


def find_scores(run_id: str) -> ScoredRun:
    """The run of a training. Raises InputError when there is none, or it is no training of ours."""
    client = open_client()
    try:
        run = client.get_run(run_id)
        config = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/config.json")
    except MlflowException as error:
        reason = public(str(error).splitlines()[0])[:200]
        raise InputError(f"MLflow has no training {run_id!r} ({reason}); `mlflow ui` shows them") from error
    state = run.data.tags.get("state")
    if state != State.COMPLETE:
        raise InputError(f"run {run_id!r} was not trained to its end; its state is {state}")
    return ScoredRun(TrialConfig.from_json(config), run.data.metrics, _digest(client, run))


def _digest(client: Any, run: Any) -> str | None:
    """Of the images of the search that a run is below, None where it is below none."""
    while "data" not in run.data.params:
        parent = run.data.tags.get("mlflow.parentRunId")
        if not parent:
            return None
        run = client.get_run(parent)
    digest: str = run.data.params["data"]
    return digest


def find_best(search: str | None) -> TrackedRun:
    """The confirmed winner of the search called `search`, or else its best trial.

    Without a name, of the latest search that has any. Raises InputError when there is none.
    """
    client = open_client()
    query = f"tags.`{SEARCH}` = '{search}'" if search else f"tags.`{SEARCH}` LIKE '%'"
    runs = []
    if "'" not in (search or ""):  # no search is called so, and MLflow has no way to quote it
        runs = client.search_runs(
            experiments(client), query, order_by=["attributes.start_time DESC"], max_results=100
        )
    if not runs:
        what = f"no search called {search!r}" if search else "no search to export from"
        raise InputError(f"MLflow has {what}; run `automl search` in this folder, or set MLFLOW_TRACKING_URI")
    for run in runs:
        tags = run.data.tags
        chosen = tags.get(CONFIRMED) or tags.get(BEST)
        if chosen:
            return replace(
                _find_run(client, chosen),
                search=tags[SEARCH],
                verdict=tags.get(VERDICT),
                confirmed=bool(tags.get(CONFIRMED)),
            )
    raise InputError(
        f"search {runs[0].info.run_name!r} has no trial that was trained to its end; search again with "
        f"more --trials, or export one by --run ID"
    )


def log_report(about: About, folder: Path, files: Sequence[str]) -> str:
    """Log `files` of `folder` to the run of a search, below `report/`, and return the run's id.

    Raises InputError when MLflow does not answer, has no such run, or does not take them.
    """
    client = open_client()
    runs = client.search_runs(experiments(client), f"tags.`{IDENTITY}` = '{about.identity}'", max_results=1)
    if not runs:
        raise InputError(
            f"MLflow at {public(mlflow.get_tracking_uri())} has no run of search {about.name!r}; run this "
            f"where the search ran or set MLFLOW_TRACKING_URI, or bring the search there: "
            f"{command('sync', about.name, about.settings.storage)}"
        )
    run_id: str = runs[0].info.run_id
    try:
        for file in files:
            client.log_artifact(run_id, str(folder / file), str(Path("report", file).parent))
    except Exception as error:  # whatever its store of artifacts raises
        raise InputError(f"MLflow did not take it ({type(error).__name__}: {public(str(error))})") from error
    return run_id
