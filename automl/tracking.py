"""MLflow: one experiment a space, a parent run a search, a child run a trial. Written by the driver alone.

Nothing else of ours imports MLflow's tracking. Runs go where MLflow itself would put them: to
MLFLOW_TRACKING_URI, or to `mlflow.db` in the current folder, which `mlflow ui` there shows.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES
from mlflow.exceptions import MlflowException
from mlflow.utils.time import get_current_time_millis

from attention import InputError
from search.config import TrialConfig
from search.record import State, TrialRecord

log = logging.getLogger("mlflow")

# Tags of ours. `state` and `reason` are for people and keep plain names.
SEARCH, BEST, CHECKPOINT = "automl.search", "automl.best_run", "automl.checkpoint"

_ENDS = {
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",
    State.INFEASIBLE: "KILLED",
    State.ERROR: "FAILED",
}


def _client() -> Any:
    """MLflow's client, once the store behind it has answered. Raises InputError when it does not."""
    uri = mlflow.get_tracking_uri()
    patience = RETRIES.get_raw()
    RETRIES.set(1)  # a server that is not there shall be missed in seconds, not minutes
    try:
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise InputError(
            f"MLflow at {uri} does not answer; start the server, or correct or unset MLFLOW_TRACKING_URI. "
            f"({type(error).__name__}: {reason})"
        ) from error
    finally:
        if patience is None:
            RETRIES.unset()
        else:
            RETRIES.set(patience)
    return client


def flat(config: TrialConfig) -> dict[str, Any]:
    """A configuration as few, readable parameters for MLflow's table and its parallel coordinates."""
    model, training = config.model, config.training
    return {
        "backbone": model.backbone,
        "modules": len(model.placement),
        "types": " + ".join(spec.type for spec in model.placement.values()) or "none",
        "sites": " + ".join(model.placement) or "none",
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
        "weight_decay": training.weight_decay,
        "batch_size": training.batch_size,
        "schedule": training.schedule,
        "mixup": training.mixup,
        "label_smoothing": training.label_smoothing,
        "epochs": training.epochs,
        "size": config.data.size,
        "seed": config.seed,
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)  # the artifact has every digit


class Tracker:
    """A listener that writes each trial as a run, as a child of the search's run if there is a search.

    A store that fails in the middle of a search does not stop it: what could not be written is counted
    in `lost` and logged.
    """

    def __init__(
        self, *, experiment: str, search: str | None = None, about: Mapping[str, Any] | None = None
    ) -> None:
        self.client = _client()
        found = self.client.get_experiment_by_name(experiment)
        self.experiment = found.experiment_id if found else self.client.create_experiment(experiment)
        self.parent = self._run(search, {SEARCH: search, "state": "running"}) if search else None
        for key, value in (about or {}).items():
            self.client.log_param(self.parent, key, value)
        self.runs: dict[int, str] = {}
        self.open: set[int] = set()
        self.lost = 0

    def _run(self, name: str, tags: dict[str, str]) -> str:
        run = self.client.create_run(self.experiment, run_name=name, tags=tags)
        identifier: str = run.info.run_id
        return identifier

    def _try(self, write: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return write(*args, **kwargs)
        except Exception:
            self.lost += 1
            log.exception("MLflow did not take a write")
            return None

    def started(self, trial: TrialRecord) -> None:
        tags = {"state": str(State.RUNNING)}
        if self.parent:
            tags["mlflow.parentRunId"] = self.parent
        run = self._try(self._run, trial.name, tags)
        if run is None:
            return
        self.runs[trial.number] = run
        self.open.add(trial.number)
        parameters = [Param(key, _text(value)) for key, value in flat(trial.config).items()]
        self._try(self.client.log_batch, run, params=parameters)
        self._try(self.client.log_dict, run, trial.config.to_json(), "config.json")

    def reported(self, trial: TrialRecord) -> None:
        if run := self.runs.get(trial.number):
            record, now = trial.history[-1], get_current_time_millis()
            step = int(record["epoch"])
            metrics = [Metric(key, value, now, step) for key, value in record.items() if key != "epoch"]
            self._try(self.client.log_batch, run, metrics=metrics)

    def ended(self, trial: TrialRecord) -> None:
        self.open.discard(trial.number)
        if run := self.runs.get(trial.number):
            self._try(self.client.set_tag, run, "state", str(trial.state))
            if trial.reason:
                self._try(self.client.set_tag, run, "reason", trial.reason)
            self._try(self.client.set_terminated, run, _ENDS[trial.state])

    def saved(self, trial: TrialRecord) -> None:
        if run := self.runs.get(trial.number):
            self._try(self.client.set_tag, run, CHECKPOINT, trial.checkpoint)

    def finish(self, *, best: TrialRecord | None, metric: str, counts: Mapping[State, int]) -> None:
        """End the search's run with the best trial and how many trials ended in which state.

        Trials that were running when the search stopped are marked as stopped.
        """
        for number in self.open:
            self._try(self.client.set_tag, self.runs[number], "state", "stopped")
            self._try(self.client.set_terminated, self.runs[number], "KILLED")
        for state in State:
            if state is not State.RUNNING:
                self._try(self.client.log_metric, self.parent, str(state), counts.get(state, 0))
        if best is not None and best.number in self.runs:
            self._try(self.client.set_tag, self.parent, BEST, self.runs[best.number])
            self._try(self.client.log_metric, self.parent, f"best_{metric}", best.history[-1][metric])
        end = State.ERROR if best is None else State.COMPLETE
        self._try(self.client.set_tag, self.parent, "state", str(end))
        self._try(self.client.set_terminated, self.parent, _ENDS[end])


@dataclass(frozen=True)
class TrackedRun:
    """A trial's run as MLflow has it. `checkpoint` is a file on the machine that trained it."""

    run_id: str
    name: str
    checkpoint: Path


def find_run(run_id: str) -> TrackedRun:
    """The run of a trial. Raises InputError when there is no such run or it has no checkpoint."""
    client = _client()
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        raise InputError(f"MLflow has no run {run_id!r}; `mlflow ui` shows the runs there are") from error
    folder = run.data.tags.get(CHECKPOINT)
    if not folder:
        raise InputError(
            f"run {run_id} ({run.info.run_name}) has no checkpoint; choose a trial that was trained"
        )
    return TrackedRun(run_id, run.info.run_name, Path(folder) / "checkpoint.pt")


def find_best(search: str | None) -> TrackedRun:
    """The best trial of the search called `search`, or of the latest one that has any.

    Raises InputError when there is none.
    """
    client = _client()
    experiments = [e.experiment_id for e in client.search_experiments()]
    query = f"tags.`{SEARCH}` = '{search}'" if search else f"tags.`{SEARCH}` LIKE '%'"
    runs = []
    if "'" not in (search or ""):  # no search is called so, and MLflow has no way to quote it
        runs = client.search_runs(
            experiments, query, order_by=["attributes.start_time DESC"], max_results=100
        )
    if not runs:
        what = f"no search called {search!r}" if search else "no search to export from"
        raise InputError(f"MLflow has {what}; run `automl search` in this folder, or set MLFLOW_TRACKING_URI")
    for run in runs:
        if BEST in run.data.tags:
            return find_run(run.data.tags[BEST])
    raise InputError(
        f"search {runs[0].info.run_name!r} has no trial that was trained to its end; search again with "
        f"more --trials, or export one by --run ID"
    )
