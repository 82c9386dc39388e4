"""Runs a scheduler on Ray Tune: trials run in actors, wherever there is capacity.

Trials whose process died are restarted here (RETRIES), not by Tune.
"""

import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayActorError, RayTaskError
from ray.train import WorkerGroupError
from ray.tune.experiment import Trial as TuneTrial

from cluster.connect import ClusterCapacity
from cluster.ray_internals import (
    end_process,
    error_of,
    error_text,
    prepare_tune,
    skip_first_result,
    worker_failure,
)
from search.record import Report, TrialRecord
from search.trial_scheduler import TrialScheduler

REPORT = "report"  # key in a result of Tune: the trial's Report
NODE = "node"  # key in a result: the id of the node, if known
LABELS = "labels"  # key in a trial's config: labels of the nodes that may run it, as Ray selects them
RETRIES = 3  # restarts of a trial from the same epoch after its process died

Assignment = Mapping[str, Any]


def run_trials(
    trainable: type[tune.Trainable],
    scheduler: TrialScheduler,
    *,
    assign: Callable[[TrialRecord], Assignment],
    resources: Mapping[str, float],
    capacity: ClusterCapacity,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the scheduler's trials, as many at a time as there is capacity for, until it has no more.

    Args:
        trainable: An actor class that reports an epoch per step and is reused for several trials. Each result
            holds a `Report` as `report`. It resumes from the files of an earlier process of the same trial.
        scheduler: The scheduler.
        assign: Returns the config of a trial's process.
        resources: The resources of a trial, in Ray's names.
        capacity: The capacity of the cluster.
        folder: The folder of Tune's own files, which are not needed afterwards.
        stop: Polled. If it returns True, the run ends at once, and another run can resume it.
    """
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # infeasible trials have no score
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # MLflow records the metrics
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # `stop` handles signals
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1e9"  # the study holds the state
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "1000000"  # `capacity` limits them
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new output prints a banner at any verbosity
    prepare_tune()
    searcher = _Searcher(scheduler, assign, capacity, stop)
    tuner = tune.Tuner(
        tune.with_resources(trainable, partial(_request, dict(resources))),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=_Scheduler(searcher),
            num_samples=-1,  # the scheduler ends the run
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.resolve()),
            callbacks=[_Callback(searcher)],
            stop=_Stopper(scheduler, stop),
            failure_config=tune.FailureConfig(max_failures=0),  # the searcher restarts trials
            # A trial writes its own checkpoints. Tune asks for one by default.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    )
    tuner.fit()


def _request(resources: Mapping[str, float], config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    selected = config[LABELS]
    return tune.PlacementGroupFactory(
        [dict(resources)], bundle_label_selector=[dict(selected)] if selected else None
    )


def _name(trial: TuneTrial) -> str:
    return f"{trial.config['number']:04d}"


class _InDriver:
    """Object that stays in the driver. Tune pickles its arguments, and gets an empty object."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Searcher(_InDriver, tune.search.Searcher):
    """Tune searcher that gets trials from the scheduler, and restarts those whose process died.

    A restarted trial is new to Tune, which would lose one that dies while it takes over another's process.

    Attributes:
        numbers: The scheduler's number of each of Tune's trials.
        live: Tune's trials that have not ended.
    """

    def __init__(
        self,
        scheduler: TrialScheduler,
        assign: Callable[[TrialRecord], Assignment],
        capacity: ClusterCapacity,
        stop: Callable[[], bool],
    ) -> None:
        metric = scheduler.plan.metric
        super().__init__(metric=metric.name, mode=metric.mode)
        self.scheduler, self.assign, self.capacity, self.stop = scheduler, assign, capacity, stop
        self.numbers: dict[str, int] = {}
        self.live: set[str] = set()
        self._again: deque[int] = deque()
        self._crashes: dict[int, list[str]] = {}  # the nodes of crashes since a trial's last epoch
        self._moved: set[str] = set()  # Tune's trials whose processes this class ended
        self._over = False

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.stop():  # while no trial runs, Tune calls only this method
            return str(self.FINISHED)
        if len(self.live) >= self.capacity.slots():
            return None
        record = self.scheduler.records[self._again.popleft()] if self._again else self._ask()
        if record is None:
            # Running trials may still need a restart, and Tune does not ask again after FINISHED.
            return None if self.live else str(self.FINISHED)
        self.live.add(trial_id)
        self.numbers[trial_id] = record.number
        return {"number": record.number, LABELS: dict(self.capacity.labels()), **self.assign(record)}

    def _ask(self) -> TrialRecord | None:
        record = None if self._over else self.scheduler.ask()
        self._over = record is None and not self.scheduler.waiting
        return record

    def report(self, trial_id: str, report: Report) -> bool:
        """Record a report. Return True if the trial continues."""
        number = self.numbers[trial_id]
        known = len(self.scheduler.records[number].history)
        if len(report.history) > known:
            self._crashes.pop(number, None)
        return self.scheduler.report(number, report)

    def move(self, trial: TuneTrial) -> None:
        """End the trial's process, so that the trial restarts in another one. The process is not reused."""
        self._moved.add(trial.trial_id)
        end_process(trial)

    def crashed(self, trial: TuneTrial) -> None:
        """Restart a trial whose process died, unless it died too often on nodes that are not lost."""
        number = self.numbers[trial.trial_id]
        if trial.trial_id not in self._moved:
            nodes = self._crashes.setdefault(number, [])
            actor = _dead_actor(trial)
            nodes.append(self.capacity.node_of(actor) if actor is not None else "")
            # Ray may notice a lost node late.
            if sum(not (node and self.capacity.lost(node)) for node in nodes) > RETRIES:
                self.scheduler.end(number, None, error=_reason(trial))
                return
        self._again.append(number)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.live.discard(trial_id)
        if not error:  # the callback handles errors, since it gets their reason
            self.scheduler.end(self.numbers[trial_id], (result or {}).get(REPORT))

    # Nothing is saved, since the study is on disk.
    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _Scheduler(_InDriver, tune.schedulers.FIFOScheduler):
    """Tune's scheduler, which stops a trial if the study's scheduler does."""

    def __init__(self, searcher: _Searcher) -> None:
        super().__init__()
        self.searcher = searcher

    def on_trial_add(self, controller: Any, trial: TuneTrial) -> None:
        skip_first_result(trial)

    def choose_trial_to_run(self, controller: Any) -> None:
        """Return None: Tune then starts waiting trials in order, without a scan of ended trials."""

    def on_trial_result(self, controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        report, node = result.get(REPORT), result.get(NODE)
        continues = report is None or self.searcher.report(trial.trial_id, report)
        if node is not None and report is not None and report.fault is not None:
            self.searcher.capacity.close(node, report.fault)
        if node is not None and self.searcher.capacity.leaving(node):
            self.searcher.move(trial)  # its checkpoint is written by now
        return str(self.CONTINUE if continues else self.STOP)


class _Callback(_InDriver, tune.Callback):
    """Tune callback that forwards events which Tune sends only to callbacks."""

    def __init__(self, searcher: _Searcher) -> None:
        self.searcher = searcher

    def on_trial_start(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self.searcher.scheduler.started(self.searcher.numbers[trial.trial_id])

    def on_trial_error(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self.searcher.crashed(trial)


def _reason(trial: TuneTrial) -> str | None:
    """Return the last line of a traceback, which names the error."""
    lines = error_text(trial).strip().splitlines()
    return lines[-1].strip() if lines else None


def _dead_actor(trial: TuneTrial) -> str | None:
    """Return the id of the actor whose death ended a trial. It may be a worker of Ray Train."""
    error = error_of(trial)
    cause = error.cause if isinstance(error, RayTaskError) else error
    workers = cause.worker_failures.values() if isinstance(cause, WorkerGroupError) else ()
    failures = (cause, *map(worker_failure, workers))
    return next((failure.actor_id for failure in failures if isinstance(failure, RayActorError)), None)


class _Stopper(_InDriver, tune.Stopper):
    """Tune stopper that ends the run if `stop` returns True or trials keep failing for one reason."""

    def __init__(self, scheduler: TrialScheduler, stop: Callable[[], bool]) -> None:
        self.scheduler, self.stop = scheduler, stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.stop() or self.scheduler.repeated_failure
