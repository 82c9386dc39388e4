"""A mirror of the trials in MLflow.

MLflow is a mirror of the search's study, never the other way round. A thread brings each run to where its
trial is, so training never waits for MLflow; what fails is tried again, and what is missing in the end can be
brought from the study at any time (`automl sync`). A run that exists is continued from its last epoch.
"""

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.utils.time import get_current_time_millis

from automl.storage import Storage
from automl.tracking.client import (
    BEST,
    CHECKPOINT,
    CONFIRMED,
    IDENTITY,
    TRIAL,
    VERDICT,
    artifact_location,
    open_client,
)
from search.config import TrialConfig
from search.record import CHECKPOINT as FILE
from search.record import State, TrialRecord

log = logging.getLogger("mlflow")

PATIENCE = 30.0  # seconds that the end of a search waits for MLflow to take what is left
EPOCHS = 50  # that are written at once; MLflow takes no more than 1000 numbers
PAUSE = (1.0, 30.0)  # seconds between two tries, the first and the longest

_ENDS = {
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",
    State.INFEASIBLE: "KILLED",
    State.ERROR: "FAILED",
}


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


@dataclass
class _Run:
    """How far a run in MLflow has come: the epochs, the end and the checkpoint that it holds."""

    run_id: str
    epochs: int = 0
    state: str = ""
    checkpoint: str = ""


class Tracker:
    """A listener that mirrors each trial as a run: as a child of the run of what they belong to, if anything.

    name: of that run, such as the search. tags: its own. identity: tells it from others of its name, so that
        its runs are found and continued. above: the identity of the run that it is a child of.
    checkpoint: the folder of a trial's checkpoint.
    about: parameters of the parent run. settings: an artifact of it.
    """

    def __init__(
        self,
        *,
        experiment: str,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        identity: str = "",
        above: str = "",
        checkpoint: Callable[[TrialRecord], Storage],
        about: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = open_client()
        self.checkpoint = checkpoint
        found = self.client.get_experiment_by_name(experiment)
        self.experiment = (
            found.experiment_id
            if found
            else self.client.create_experiment(experiment, artifact_location(experiment))
        )
        self.parent: str | None = None
        self._runs: dict[int, _Run] = {}
        if name:
            self.parent = self._find_parent(identity)
            if self.parent is None:
                own = {**(tags or {}), IDENTITY: identity, "state": str(State.RUNNING)}
                if over := self._find_parent(above):
                    own["mlflow.parentRunId"] = over
                self.parent = self._create(name, own)
                parameters = [Param(key, _text(value)) for key, value in (about or {}).items()]
                self.client.log_batch(self.parent, params=parameters)
                self.client.log_dict(self.parent, dict(settings or {}), "search.json")
            else:
                self.client.update_run(self.parent, status="RUNNING")
                self.client.set_tag(self.parent, "state", str(State.RUNNING))
                self._find_children()
        # What is to be mirrored, newest state alone; the lock guards it, and wakes the thread.
        self._wanted: dict[int, TrialRecord] = {}
        self._news = threading.Condition()
        self._busy: set[int] = set()  # the trial that the thread is at
        self._closed = False
        self._pause = 0.0
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    @property
    def runs(self) -> dict[int, str]:
        """The run of each trial that MLflow has."""
        return {number: run.run_id for number, run in self._runs.items()}

    # The listener: notes what has changed, and returns.

    def started(self, trial: TrialRecord) -> None:
        self.update(trial)

    def reported(self, trial: TrialRecord) -> None:
        self.update(trial)

    def ended(self, trial: TrialRecord) -> None:
        self.update(trial)

    def update(self, trial: TrialRecord) -> None:
        """Mirror the trial as it is now."""
        now = copy.copy(trial)
        now.history = list(trial.history)
        with self._news:
            self._wanted[trial.number] = now
            self._news.notify_all()

    # The thread.

    def _work(self) -> None:
        while True:
            with self._news:
                self._busy.clear()
                self._news.notify_all()
                while not self._wanted and not self._closed:
                    self._news.wait()
                if not self._wanted:
                    return
                number = next(iter(self._wanted))
                trial = self._wanted.pop(number)
                self._busy.add(number)
            try:
                self._mirror(trial)
                self._pause = 0.0
            except Exception as error:
                if not self._pause:
                    log.warning("MLflow did not take a write, which is tried again: %s", error)
                first, longest = PAUSE
                self._pause = min(max(first, 2 * self._pause), longest)
                with self._news:
                    self._wanted.setdefault(number, trial)  # unless there is something newer
                    self._busy.clear()
                    if self._closed:
                        return
                    self._news.wait_for(lambda: self._closed, timeout=self._pause)
                self._look_again()

    def _look_again(self) -> None:
        """A write that failed may have been taken all the same: ask what is there."""
        if self.parent:
            try:
                self._find_children()
            except Exception as error:
                log.warning("MLflow does not answer: %s", error)

    def _mirror(self, trial: TrialRecord) -> None:
        run = self._runs.get(trial.number)
        if run is None:
            tags = {"state": str(State.RUNNING), "role": str(trial.role), TRIAL: str(trial.number)}
            if self.parent:
                tags["mlflow.parentRunId"] = self.parent
            run = _Run(self._create(trial.name, tags))
            self._runs[trial.number] = run
        if not run.state:
            self.client.log_dict(run.run_id, trial.config.to_json(), "config.json")
            parameters = [Param(key, _text(value)) for key, value in flat(trial.config).items()]
            self.client.log_batch(run.run_id, params=parameters)
            run.state = str(State.RUNNING)
        while new := trial.history[run.epochs : run.epochs + EPOCHS]:
            metrics = []
            for record in new:
                at = int(1e3 * record["time"]) if "time" in record else get_current_time_millis()
                step = int(record["epoch"])
                metrics += [Metric(key, value, at, step) for key, value in record.items() if key != "time"]
                if step == 1:
                    metrics += [Metric(key, float(value), at, 0) for key, value in trial.facts.items()]
            self.client.log_batch(run.run_id, metrics=metrics)  # all of it or nothing
            run.epochs += len(new)
        if trial.state is not State.RUNNING:
            if not trial.history and trial.facts and run.state != str(trial.state):
                now = get_current_time_millis()
                facts = [Metric(key, float(value), now, 0) for key, value in trial.facts.items()]
                self.client.log_batch(run.run_id, metrics=facts)
            self._end(run, trial)

    def _end(self, run: _Run, trial: TrialRecord) -> None:
        place = self.checkpoint(trial)
        checkpoint = str(place) if place.exists(FILE) else ""
        if run.checkpoint != checkpoint:
            self.client.set_tag(run.run_id, CHECKPOINT, checkpoint)
            run.checkpoint = checkpoint
        if run.state != str(trial.state):
            if trial.reason:
                self.client.set_tag(run.run_id, "reason", trial.reason)
            self.client.set_terminated(run.run_id, _ENDS[trial.state])
            # Last: whoever finds it takes the end for whole.
            self.client.set_tag(run.run_id, "state", str(trial.state))
            run.state = str(trial.state)

    def _create(self, name: str, tags: dict[str, str]) -> str:
        run = self.client.create_run(self.experiment, run_name=name, tags=tags)
        identifier: str = run.info.run_id
        return identifier

    def _find_parent(self, identity: str) -> str | None:
        if not identity:
            return None
        runs = self.client.search_runs([self.experiment], f"tags.`{IDENTITY}` = '{identity}'")
        return runs[0].info.run_id if runs else None

    def _find_children(self) -> None:
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment],
                f"tags.`mlflow.parentRunId` = '{self.parent}'",
                max_results=1000,
                page_token=token,
            )
            for run in page:
                data = run.data
                if TRIAL not in data.tags:
                    continue
                # A run without parameters was left in the middle of its making.
                state = data.tags["state"] if "epochs" in data.params else ""
                if state == "stopped":
                    state = str(State.RUNNING)
                    self.client.update_run(run.info.run_id, status="RUNNING")
                epochs = int(data.metrics.get("epoch", 0))
                self._runs[int(data.tags[TRIAL])] = _Run(
                    run.info.run_id, epochs, state, data.tags.get(CHECKPOINT, "")
                )
            token = page.token
            if not token:
                return

    # The end.

    def drain(self, patience: float = PATIENCE) -> int:
        """Wait until everything is mirrored, or `patience` seconds. Returns how many trials are not."""
        until = time.monotonic() + patience
        with self._news:
            self._news.wait_for(
                lambda: not self._wanted and not self._busy, timeout=max(0.0, until - time.monotonic())
            )
            return len(self._wanted.keys() | self._busy)

    def close(self, patience: float = PATIENCE) -> int:
        """`drain`, and end the thread."""
        missing = self.drain(patience)
        with self._news:
            self._closed = True
            self._wanted.clear()
            self._news.notify_all()
        return missing

    def finish(
        self,
        *,
        best: TrialRecord | None,
        metric: str,
        counts: Mapping[State, int],
        stopped: bool = False,
        patience: float = PATIENCE,
    ) -> int:
        """End the search's run with the best trial and how many trials ended in which state.

        stopped: the search is to go on later; its running trials are marked so.
        Returns how many trials MLflow has not taken, 0 if it has all of this; the search is then incomplete
        in MLflow until `automl sync`.
        """
        missing = self.close(patience)
        try:
            self._finish(best, metric, counts, stopped)
        except Exception as error:
            log.warning("MLflow did not take the end of the search: %s", error)
            missing = max(1, missing)
        return missing

    def conclude(self, identity: str, verdict: Mapping[str, Any], winner: str | None) -> int:
        """Write a verdict to the run of the search: its sentence, all of it, the run of a confirmed winner.

        Returns 0, or 1 if MLflow did not take it.
        """
        try:
            run_id = self._find_parent(identity)
            if run_id is not None:
                self.client.set_tag(run_id, VERDICT, str(verdict["sentence"]))
                self.client.log_dict(run_id, dict(verdict), "verdict.json")
                if winner is not None:
                    self.client.set_tag(run_id, CONFIRMED, winner)
                elif CONFIRMED in self.client.get_run(run_id).data.tags:
                    self.client.delete_tag(run_id, CONFIRMED)
        except Exception as error:
            log.warning("MLflow did not take the verdict: %s", error)
            return 1
        return 0

    def _finish(
        self, best: TrialRecord | None, metric: str, counts: Mapping[State, int], stopped: bool
    ) -> None:
        for run in self._runs.values():
            if run.state == str(State.RUNNING):
                self.client.set_tag(run.run_id, "state", "stopped")
                self.client.set_terminated(run.run_id, "KILLED")
        now = get_current_time_millis()
        numbers = {str(s): float(counts.get(s, 0)) for s in State if s is not State.RUNNING}
        if best is not None:
            numbers[f"best_{metric}"] = best.value(metric)
        metrics = [Metric(key, value, now, 0) for key, value in numbers.items()]
        self.client.log_batch(self.parent, metrics=metrics)
        if best is not None and best.number in self._runs:
            self.client.set_tag(self.parent, BEST, self._runs[best.number].run_id)
        end = State.ERROR if best is None else State.COMPLETE
        self.client.set_tag(self.parent, "state", "stopped" if stopped else str(end))
        self.client.set_terminated(self.parent, "KILLED" if stopped else _ENDS[end])
