"""Write runs to MLflow: a run for each trial, nested in the run of its search or confirmation.

Each write raises MLflow's errors and can be repeated, since existing runs are continued. The tracker decides
when to write.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.time import get_current_time_millis

from automl.base.escape import markdown, mlflow_key, mlflow_value, redact, redact_all
from automl.tracking import client
from automl.tracking.run_spec import (
    BEST,
    CHECKPOINT,
    CONFIRMED,
    DATA_CONTEXT,
    EPOCH,
    EPOCHS_DONE,
    FIGURES,
    IDENTITY,
    NOTE,
    PARENT,
    PROFILE,
    TRIAL,
    VERDICT,
    RunSpec,
    flat,
    named,
    run_name,
    verdict_numbers,
)
from search.config import TrialConfig
from search.record import CHECKPOINT_FILE, State, TrialRecord, format_options, model_name, model_options

NONE: Mapping[str, str] = {}
DIGEST = 36  # characters that MLflow takes of one
PARAGRAPH = "\n\n"
EPOCHS = 50  # records that are written at once; MLflow takes no more than 1000 numbers

_ENDS = {
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",  # as in MLflow's own storage for Optuna
    State.INFEASIBLE: "FAILED",
    State.ERROR: "FAILED",
}


def _params(values: Mapping[str, Any]) -> list[Param]:
    """Format parameters with four digits. An artifact has all digits."""
    return [
        Param(mlflow_key(key), f"{v:.4g}" if isinstance(v, float) else mlflow_value(v))
        for key, v in redact_all(values).items()
    ]


def datasets(config: TrialConfig, digest: str, splits: Sequence[str]) -> list[DatasetInput]:
    """Return the datasets that a trial of this configuration reads, one for each split.

    digest: of all splits together.
    """
    data = config.data
    name = Path(data.path).name if data.path else data.source
    kind, source = ("local", {"uri": redact(data.path)}) if data.path else ("automl", {"source": data.source})
    return [
        DatasetInput(
            Dataset(mlflow_value(f"{name} {split}"), digest[:DIGEST] or "unknown", kind, json.dumps(source)),
            [InputTag(DATA_CONTEXT, split)],
        )
        for split in splits
    ]


@dataclass
class _Run:
    """Progress of a run in MLflow: its last epoch, end and checkpoint."""

    run_id: str
    epoch: float = -1.0
    state: str = ""
    checkpoint: str = ""


class MlflowWriter:
    """Writer of the runs of a `RunSpec`. Raise InputError if MLflow does not answer."""

    def __init__(self, run_spec: RunSpec) -> None:
        self.run_spec = run_spec
        self.client = client.open_client(create=True)
        name = run_spec.experiment
        self.experiment = client.find_experiment(self.client, name) or ""
        try:
            if not self.experiment:
                self.experiment = self.client.create_experiment(name, client.artifact_location(name))
        except MlflowException:
            self.experiment = client.find_experiment(self.client, name) or ""
            if not self.experiment:  # no other process has just created it
                raise
        self.parent: str | None = None
        self._runs: dict[int, _Run] = {}
        self._has_data = False
        if run_spec.name:
            self.parent = self._find_parent(run_spec.identity)
            if self.parent is None:
                self.parent = self._create_parent(run_spec.name)
            else:
                self.client.update_run(self.parent, status="RUNNING", name=mlflow_value(run_spec.name))
                for key, value in {**run_spec.tags, "state": str(State.RUNNING)}.items():
                    self.client.set_tag(self.parent, key, mlflow_value(value))  # it may have been renamed
                self.read_runs()
        elif run_spec.alone:
            self.read_runs()

    def runs(self) -> dict[int, str]:
        """Return the ID of the MLflow run of each trial."""
        return {number: run.run_id for number, run in self._runs.items()}

    def page(self) -> str:
        """Return the address of the table of runs, on the server or in `mlflow ui` on this machine."""
        return f"{client.pages(self.client)}/#/experiments/{self.experiment}/runs"

    def read_runs(self) -> None:
        """Learn how far the runs are: a write that failed may have been taken all the same."""
        marks = {PARENT: self.parent} if self.parent else {IDENTITY: self.run_spec.alone}
        if not all(marks.values()):
            return
        for run in client.find_runs(self.client, [self.experiment], marks):
            data = run.data
            if TRIAL not in data.tags:
                continue
            # A run without parameters was left in the middle of its making.
            state = data.tags["state"] if "epochs" in data.params else ""
            if state == "stopped" or (self.run_spec.alone and state == str(State.ERROR)):
                state = str(State.RUNNING)
                self.client.update_run(run.info.run_id, status="RUNNING")
            epoch = data.metrics.get(EPOCHS_DONE, -1.0)
            self._runs[int(data.tags[TRIAL])] = _Run(
                run.info.run_id, epoch, state, data.tags.get(CHECKPOINT, "")
            )

    def write(self, trial: TrialRecord) -> str:
        """Update the trial's run. Return the run's ID.

        Each call of the client is a request, so there are few: one starts the run, one logs its artifact, one
        ends it, and one logs all new values.
        """
        run = self._runs.get(trial.number)
        if run is None:
            name = run_name(trial)
            if self.run_spec.alone:
                name = (
                    f"{trial.config.model.placement_name()} {self.run_spec.alone} {model_name(trial.config)}"
                )
            tags = {"state": str(State.RUNNING), "role": str(trial.role), TRIAL: str(trial.number)}
            own = {IDENTITY: self.run_spec.alone, PARENT: self.parent}
            tags |= {**self.run_spec.source, **{key: value for key, value in own.items() if value}}
            run = self._runs[trial.number] = _Run(self._create(name, tags))
        params = []
        if not run.state:
            self.client.log_dict(run.run_id, redact_all(trial.config.to_json()), "config.json")
            params = _params(flat(trial.config))
            inputs = datasets(trial.config, self.run_spec.data, self.run_spec.splits)
            self.client.log_inputs(run.run_id, inputs)
            if self.parent is not None and not self._has_data:
                self.client.log_inputs(self.parent, inputs)
            self._has_data = True
        while sum(record["epoch"] > run.epoch for record in trial.history) > EPOCHS:
            self._log(run, trial)
        end = {} if trial.state is State.RUNNING else self._end(run, trial)
        if "state" in end:
            self.client.set_terminated(run.run_id, _ENDS[trial.state])
        self._log(run, trial, params, end)
        run.state = end.get("state") or run.state or str(State.RUNNING)
        run.checkpoint = end.get(CHECKPOINT, run.checkpoint)
        return run.run_id

    def _end(self, run: _Run, trial: TrialRecord) -> dict[str, str]:
        """Return the tags of a trial's end that the run does not have yet."""
        storage = self.run_spec.checkpoint(trial)
        checkpoint = str(storage) if storage.exists(CHECKPOINT_FILE) else ""
        tags = {CHECKPOINT: checkpoint} if run.checkpoint != checkpoint else {}
        if run.state != str(trial.state):
            tags["state"] = str(trial.state)
            if trial.reason:
                tags["reason"] = trial.reason
        return tags

    def _log(
        self, run: _Run, trial: TrialRecord, params: Sequence[Param] = (), tags: Mapping[str, str] = NONE
    ) -> None:
        """Log the next epochs, with parameters and tags."""
        # MLflow writes parameters, metrics and tags in this order, so a run with the tag of its end is whole.
        new = [record for record in trial.history if record["epoch"] > run.epoch][:EPOCHS]
        metrics = []
        for record in new:
            at = int(1e3 * record["time"]) if "time" in record else get_current_time_millis()
            # MLflow's steps are whole: epochs, or the parts of an epoch that end with a validation.
            step = round(record["epoch"] / (min(1.0, trial.history[0]["epoch"]) or 1.0))
            values = named({key: value for key, value in record.items() if key != "time"}, EPOCH)
            metrics += [Metric(key, value, at, step) for key, value in values.items()]
        if (new and run.epoch < 0) or ("state" in tags and not trial.history):
            at = metrics[0].timestamp if metrics else get_current_time_millis()
            metrics += [Metric(key, value, at, 0) for key, value in named(trial.profile, PROFILE).items()]
        if params or metrics or tags:
            written = [RunTag(key, mlflow_value(value)) for key, value in tags.items()]
            self.client.log_batch(run.run_id, metrics=metrics, params=params, tags=written)
        run.epoch = new[-1]["epoch"] if new else run.epoch

    def finish(
        self, best: TrialRecord | None, metric: str | None, counts: Mapping[State, int], stopped: bool
    ) -> None:
        """End the parent run, and the runs of trials that have not ended.

        Args:
            best: The best trial.
            metric: The metric of the trials, logged with the value of the best one. None for a
                confirmation, where the best of all seeds has no meaning.
            counts: Number of trials in each state.
            stopped: True if the search was interrupted.
        """
        for run in self._runs.values():
            if run.state == str(State.RUNNING):
                self.client.set_tag(run.run_id, "state", "stopped")
                self.client.set_terminated(run.run_id, "KILLED")
        now = get_current_time_millis()
        numbers = {str(s): float(counts.get(s, 0)) for s in State if s is not State.RUNNING}
        if best is not None and metric is not None:
            numbers[f"best_{metric}"] = best.value(metric)
        metrics = [Metric(key, value, now, 0) for key, value in numbers.items()]
        self.client.log_batch(self.parent, metrics=metrics)
        if best is not None and best.number in self._runs:
            self.client.set_tag(self.parent, BEST, self._runs[best.number].run_id)
        confirmed = VERDICT in self.client.get_run(self.parent).data.tags
        if best is not None and metric is not None and not confirmed:
            options = format_options(model_options(best.config))
            what = markdown(best.config.model.placement_name() + (f", {options}" if options else ""))
            shown, value = self.run_spec.metric, best.value(metric)
            score = f"{value:.4g}" if shown is None else shown.show(value)
            best_text = f"{markdown(metric)} **{score}** on the validation split, {what}"
            self._describe(
                self.parent, f"Best trial {best.number}: {best_text}. Not confirmed on fresh seeds."
            )
        end = State.ERROR if best is None else State.COMPLETE
        self.client.set_tag(self.parent, "state", "stopped" if stopped else str(end))
        self.client.set_terminated(self.parent, "KILLED" if stopped else _ENDS[end])

    def conclude(self, identity: str, verdict: Mapping[str, Any], winner: str | None) -> None:
        """Write a verdict to the run of the search with this identity: its lines, file and winner.

        The parent run of the trials also gets it, with its numbers as metrics.
        """
        headline, figures = verdict["headline"], f"{verdict['figures']} {verdict['cost']}".strip()
        first = f"**{markdown(headline)}.** {markdown(verdict['advice'])}".strip()
        tags = {VERDICT: mlflow_value(headline), FIGURES: mlflow_value(figures)}
        text = f"{first}  \n{markdown(figures)}"
        if self.parent is not None:
            now = get_current_time_millis()
            metrics = [Metric(key, float(value), now, 0) for key, value in verdict_numbers(verdict).items()]
            outcome = {"verdict": mlflow_value(verdict.get("verdict"))}
            run_tags = [RunTag(key, value) for key, value in {**outcome, **tags}.items()]
            self.client.log_batch(self.parent, metrics=metrics, tags=run_tags)
            self.client.log_dict(self.parent, dict(verdict), "verdict.json")
            self._describe(self.parent, text)
        run_id = self._find_parent(identity)
        if run_id is None:
            return
        for key, value in tags.items():
            self.client.set_tag(run_id, key, value)
        self._describe(run_id, text)
        self.client.log_dict(run_id, dict(verdict), "verdict.json")
        if winner is not None:
            self.client.set_tag(run_id, CONFIRMED, winner)
        elif CONFIRMED in self.client.get_run(run_id).data.tags:
            self.client.delete_tag(run_id, CONFIRMED)

    def _describe(self, run_id: str | None, text: str) -> None:
        """Put what was found before what the run's description says of how it was made."""
        origin = self.client.get_run(run_id).data.tags.get(NOTE, "").rpartition(PARAGRAPH)[2]
        self.client.set_tag(run_id, NOTE, f"{text}{PARAGRAPH}{origin}" if origin else text)

    def _create_parent(self, name: str) -> str:
        run_spec = self.run_spec
        tags = {**run_spec.tags, **run_spec.source, "state": str(State.RUNNING)}
        tags[IDENTITY] = run_spec.identity
        if run_spec.note:
            tags[NOTE] = run_spec.note
        if over := self._find_parent(run_spec.above):
            tags[PARENT] = over
        run_id = self._create(name, tags)
        self.client.log_batch(run_id, params=_params(run_spec.params))
        self.client.log_dict(run_id, dict(run_spec.settings), "search.json")
        return run_id

    def _create(self, name: str, tags: Mapping[str, str]) -> str:
        written = {key: mlflow_value(value) for key, value in tags.items()}
        run = self.client.create_run(self.experiment, run_name=mlflow_value(name), tags=written)
        return str(run.info.run_id)

    def _find_parent(self, identity: str) -> str | None:
        if not identity:
            return None
        run = next(client.find_runs(self.client, [self.experiment], {IDENTITY: identity}), None)
        return None if run is None else str(run.info.run_id)
