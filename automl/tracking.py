"""MLflow: one experiment a space, a parent run a search, a child run a trial. Written by the driver alone.

Nothing else of ours imports MLflow's tracking. Runs go where MLflow itself would put them: to
MLFLOW_TRACKING_URI, or to `mlflow.db` in the current folder, which `mlflow ui` there shows.

MLflow is a mirror of the search's study, never the other way round. A thread brings each run to where its
trial is, so training never waits for MLflow; what fails is tried again, and what is missing in the end can be
brought from the study at any time (`automl sync`). A run that exists is continued from its last epoch.
"""

import copy
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import LoggedModelOutput, LoggedModelStatus, Metric, Param
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES as RETRIES
from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT as QUIET
from mlflow.exceptions import MlflowException
from mlflow.utils.time import get_current_time_millis

from attention import InputError
from automl.confirmation import Confirmation
from automl.folder import About
from automl.settings import short_name
from search.config import TrialConfig
from search.record import CHECKPOINT as FILE
from search.record import State, TrialRecord

log = logging.getLogger("mlflow")

# Tags of ours. `state`, `role` and `reason` are for people and keep plain names.
SEARCH, IDENTITY, TRIAL = "automl.search", "automl.identity", "automl.trial"
BEST, CHECKPOINT = "automl.best_run", "automl.checkpoint"
# Of a confirmation's run: the search. Of a search's: the confirmed winner's run, and the verdict in words.
CONFIRMS, CONFIRMED, VERDICT = "automl.confirms", "automl.confirmed_run", "automl.verdict"

PATIENCE = 30.0  # seconds that the end of a search waits for MLflow to take what is left
EPOCHS = 50  # that are written at once; MLflow takes no more than 1000 numbers
PAUSE = (1.0, 30.0)  # seconds between two tries, the first and the longest

_ENDS = {
    State.COMPLETE: "FINISHED",
    State.PRUNED: "KILLED",
    State.INFEASIBLE: "KILLED",
    State.ERROR: "FAILED",
}


def _client() -> Any:
    """MLflow's client, once the store behind it has answered. Raises InputError when it does not."""
    uri = mlflow.get_tracking_uri()
    QUIET.set(True)  # standard output is ours
    if RETRIES.get_raw() is None:
        RETRIES.set(1)  # a server that is not there shall be missed in seconds, not minutes; we try again
    try:
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        raise InputError(
            f"MLflow at {uri} does not answer; start the server, or correct or unset MLFLOW_TRACKING_URI. "
            f"({type(error).__name__}: {reason})"
        ) from error
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
        checkpoint: Callable[[TrialRecord], Path],
        about: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = _client()
        self.checkpoint = checkpoint
        found = self.client.get_experiment_by_name(experiment)
        self.experiment = found.experiment_id if found else self.client.create_experiment(experiment)
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
        checkpoint = str(place) if (place / FILE).exists() else ""
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


def open_tracker(folder: Path, about: About) -> Tracker:
    """The tracker of the search in `folder`, with the runs that MLflow has of it."""
    settings, plan = about.settings, about.plan
    return Tracker(
        name=about.name,
        tags={SEARCH: about.name},
        identity=about.identity,
        experiment=short_name(settings.space),
        checkpoint=lambda trial: folder / trial.folder,
        about={
            "space": settings.space,
            "trials": plan["trials"],
            "epochs": f"{plan['budget']:g}",
            "equal": settings.equal,
            "sampler": settings.sampler,
            "objective": ",".join(plan["objectives"]),
            "seed": settings.seed,
            "data": about.data[:16],
        },
        settings=about.to_json(),
    )


def open_confirmation(folder: Path, about: About, confirmation: Confirmation) -> Tracker:
    """The tracker of a search's confirmation in `folder`, below the search's run."""
    number = confirmation.number
    return Tracker(
        name=f"{about.name} confirm" + (f" {number}" if number > 1 else ""),
        tags={CONFIRMS: about.name},
        identity=f"{about.identity}-confirm-{number}",
        above=about.identity,
        experiment=short_name(about.settings.space),
        checkpoint=lambda trial: folder / trial.folder,
        about={**vars(confirmation.options), "first_seed": confirmation.seeds[0]},
        settings=confirmation.to_json(),
    )


@dataclass(frozen=True)
class TrackedRun:
    """A trial's run as MLflow has it. `checkpoint` is a file on the machine that trained it.

    search: the search that it was chosen from; None where the run itself was named.
    verdict: what the confirmation of that search found, in a sentence; None before there is one.
    confirmed: the run is the winner that the verdict speaks of.
    """

    run_id: str
    name: str
    checkpoint: Path
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
    client = _client()
    found = _find_run(client, run_id)
    parents = client.search_runs(_experiments(client), f"tags.`{CONFIRMED}` = '{run_id}'", max_results=1)
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
    return TrackedRun(run_id, run.info.run_name, Path(folder) / FILE)


@dataclass(frozen=True)
class ScoredRun:
    """A training as MLflow has it: its configuration and its last metrics."""

    config: TrialConfig
    metrics: Mapping[str, float]


def find_scores(run_id: str) -> ScoredRun:
    """The run of a training. Raises InputError when there is none, or it is no training of ours."""
    client = _client()
    try:
        run = client.get_run(run_id)
        config = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/config.json")
    except MlflowException as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"MLflow has no training {run_id!r} ({reason}); `mlflow ui` shows them") from error
    state = run.data.tags.get("state")
    if state != State.COMPLETE:
        raise InputError(f"run {run_id!r} was not trained to its end; its state is {state}")
    return ScoredRun(TrialConfig.from_json(config), run.data.metrics)


def _experiments(client: Any) -> list[str]:
    return [experiment.experiment_id for experiment in client.search_experiments()]


def log_report(about: About, folder: Path, files: Sequence[str]) -> str:
    """Log `files` of `folder` to the run of a search, below `report/`, and return the run's id.

    Raises InputError when MLflow does not answer, has no such run, or does not take them.
    """
    client = _client()
    runs = client.search_runs(_experiments(client), f"tags.`{IDENTITY}` = '{about.identity}'", max_results=1)
    if not runs:
        raise InputError(
            f"MLflow at {mlflow.get_tracking_uri()} has no run of search {about.name!r}; run this where the "
            f"search ran or set MLFLOW_TRACKING_URI, or bring the search there: automl sync {about.name}"
        )
    run_id: str = runs[0].info.run_id
    try:
        for file in files:
            client.log_artifact(run_id, str(folder / file), str(Path("report", file).parent))
    except Exception as error:  # whatever its store of artifacts raises
        raise InputError(f"MLflow did not take it ({type(error).__name__}: {error})") from error
    return run_id


def find_best(search: str | None) -> TrackedRun:
    """The confirmed winner of the search called `search`, or else its best trial.

    Without a name, of the latest search that has any. Raises InputError when there is none.
    """
    client = _client()
    query = f"tags.`{SEARCH}` = '{search}'" if search else f"tags.`{SEARCH}` LIKE '%'"
    runs = []
    if "'" not in (search or ""):  # no search is called so, and MLflow has no way to quote it
        runs = client.search_runs(
            _experiments(client), query, order_by=["attributes.start_time DESC"], max_results=100
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


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A version of a model in MLflow's registry, which `alias` names until another version gets it."""

    name: str
    version: str
    alias: str

    @property
    def uri(self) -> str:
        """What MLflow loads and serves it by."""
        return f"models:/{self.name}@{self.alias}"


def check_registry(name: str, alias: str) -> None:
    """Raises InputError where MLflow would refuse to register a model so, before there is one to register."""
    client = _client()
    # MLflow looks at the alias when it is set, and the version would be there by then.
    if not re.fullmatch(r"[\w-]{1,255}", alias, re.ASCII) or re.fullmatch(r"(?i)latest|v\d+", alias):
        raise InputError(
            f"--alias must consist of letters, digits, _ and -, and not be `latest` or v and a number, which "
            f"are MLflow's own; got {alias!r}"
        )
    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "INVALID_PARAMETER_VALUE":
            raise InputError(f"MLflow does not take {name!r} as the name of a model: {error}") from error
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise InputError(
                f"MLflow's model registry at {mlflow.get_registry_uri()} does not answer; correct or unset "
                f"MLFLOW_REGISTRY_URI. ({error})"
            ) from error


def register(
    folder: Path, run_id: str, name: str, alias: str, *, about: str, tags: Mapping[str, str]
) -> Registered:
    """Register the MLflow model in `folder` as a new version of `name`, and give it the alias.

    Its files are copied to where the store keeps artifacts. The version, and the model that it is made of,
    belong to the run. Raises InputError when MLflow refuses or does not answer.
    """
    client = _client()
    try:
        experiment = client.get_run(run_id).info.experiment_id
        # Each version has files of its own: a second export of a run leaves those of the first alone.
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
            description=about,
            model_id=model.model_id,
        ).version
        client.set_registered_model_alias(name, alias, version)
    except (MlflowException, OSError) as error:
        raise InputError(f"MLflow did not register the model as {name!r} ({error})") from error
    return Registered(name=name, version=str(version), alias=alias)
