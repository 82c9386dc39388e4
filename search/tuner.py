"""The engine on Ray Tune: its trials run in actors, wherever there is room."""

import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ray import tune
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial as TuneTrial

from search.ledger import Ledger
from search.record import Report, TrialRecord

REPORT = "report"  # in a result of Tune's: the trial's Report
AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}
RETRIES = 3  # times in a row that a trial goes on from one epoch after its process died

Assignment = Mapping[str, Any]


class Places(Protocol):
    """Where trials run."""

    def slots(self) -> int:
        """How many may run at once, as things stand. Asked all the time."""


def run_trials(
    trainable: type[tune.Trainable] | Callable[[dict[str, Any]], None],
    engine: Ledger,
    *,
    assign: Callable[[TrialRecord], Assignment],
    resources: Mapping[str, float],
    places: Places,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the engine's trials, as many at a time as there are places, until it has no more.

    trainable: an actor class that reports an epoch a step and is reused from trial to trial, or a function
        that does so in processes of its own. Each result holds a `Report` as `report`. It finds by itself
        what an earlier process of the same trial has left.
    assign: what is sent to a trial's process.
    resources: that it takes, in Tune's names.
    folder: for Tune's own files, which nobody needs afterwards.
    stop: asked all the time. When it says so, everything is left as it stands, for another run to go on with.
    """
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # what is infeasible has no score
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # MLflow has the metrics
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # `stop` knows
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1e9"  # the study is the state
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "1000000"  # `places` limits them
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one prints a banner at any verbosity
    # Ray logs what it gives a process so, for all to read; nodes have credentials of their own.
    class_cache.ENV_VARS_TO_PROPAGATE -= AWS
    bridge = _Bridge(engine)
    tuner = tune.Tuner(
        tune.with_resources(trainable, dict(resources)),
        tune_config=tune.TuneConfig(
            search_alg=_Asking(bridge, assign, places, stop),
            scheduler=_Cutting(bridge),
            num_samples=-1,  # the engine says when it is over
            reuse_actors=isinstance(trainable, type),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.resolve()),
            callbacks=[_Voice(bridge)],
            stop=_Stopping(engine, stop),
            failure_config=tune.FailureConfig(max_failures=0),  # the bridge begins trials again
            # A trial writes its own checkpoints; Tune asks classes for one unless told not to.
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False if isinstance(trainable, type) else None
            ),
            verbose=0,
        ),
    )
    tuner.fit()


def _name(trial: TuneTrial) -> str:
    return f"{trial.config['number']:04d}"


class _InDriver:
    """Lives in the driver alone: Tune pickles what it is given, and gets an empty shell of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Bridge(_InDriver):
    """The engine, and its number of each of Tune's trials.

    What goes on after its process died is another trial to Tune, which loses one of its own that dies while
    it takes over the process of another.

    live: Tune's trials that have not ended.
    """

    def __init__(self, engine: Ledger) -> None:
        self.engine = engine
        self.numbers: dict[str, int] = {}
        self.live: set[str] = set()
        self._again: deque[int] = deque()
        self._crashes: Counter[int] = Counter()  # of each trial since its last epoch
        self._over = False

    def next(self, trial_id: str) -> TrialRecord | None:
        """The next trial to run, which Tune calls `trial_id`, first those that are to go on."""
        record = self.engine.records[self._again.popleft()] if self._again else self._ask()
        if record is not None:
            self.live.add(trial_id)
            self.numbers[trial_id] = record.number
        return record

    def _ask(self) -> TrialRecord | None:
        record = None if self._over else self.engine.ask()
        self._over = record is None
        return record

    def report(self, trial_id: str, report: Report) -> bool:
        """Take in a report, and say whether the trial goes on."""
        number = self.numbers[trial_id]
        known = len(self.engine.records[number].history)
        if len(report.history) > known:
            del self._crashes[number]
        return self.engine.report(number, report)

    def crashed(self, trial_id: str, reason: str | None) -> None:
        """The trial's process died: it goes on, unless that has become a habit."""
        number = self.numbers[trial_id]
        self._crashes[number] += 1
        if self._crashes[number] > RETRIES:
            self.engine.end(number, None, error=reason)
        else:
            self._again.append(number)


class _Asking(_InDriver, tune.search.Searcher):
    """Tune's searcher: asks the engine, and only for a trial that there is a place for."""

    def __init__(
        self,
        bridge: _Bridge,
        assign: Callable[[TrialRecord], Assignment],
        places: Places,
        stop: Callable[[], bool],
    ) -> None:
        plan = bridge.engine.plan
        super().__init__(metric=plan.metric, mode="max" if plan.maximize else "min")
        self.bridge, self.assign, self.places, self.stop = bridge, assign, places, stop

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self.stop():  # while nothing runs, Tune asks nobody else
            return str(self.FINISHED)
        if len(self.bridge.live) >= self.places.slots():
            return None
        record = self.bridge.next(trial_id)
        if record is None:
            # What runs may yet have to be begun again, and Tune does not ask again after the last one.
            return None if self.bridge.live else str(self.FINISHED)
        return {"number": record.number, **self.assign(record)}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.bridge.live.discard(trial_id)
        if not error:  # errors come with their reason to the callback
            self.bridge.engine.end(self.bridge.numbers[trial_id], (result or {}).get(REPORT))

    # The study is on disk.
    def save(self, checkpoint_path: str) -> None:
        pass

    def restore(self, checkpoint_path: str) -> None:
        pass


class _Cutting(_InDriver, tune.schedulers.FIFOScheduler):
    """Tune's scheduler: the engine's word ends a trial."""

    def __init__(self, bridge: _Bridge) -> None:
        super().__init__()
        self.bridge = bridge

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        report = result.get(REPORT)
        goes_on = report is None or self.bridge.report(trial.trial_id, report)
        return str(self.CONTINUE if goes_on else self.STOP)


class _Voice(_InDriver, tune.Callback):
    """Tells the engine what Tune tells its callbacks alone."""

    def __init__(self, bridge: _Bridge) -> None:
        self.bridge = bridge

    def on_trial_start(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self.bridge.engine.started(self.bridge.numbers[trial.trial_id])

    def on_trial_error(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self.bridge.crashed(trial.trial_id, _reason(trial))


def _reason(trial: TuneTrial) -> str | None:
    """The last line of a traceback, which names the error."""
    file = trial.error_file
    lines = Path(file).read_text().strip().splitlines() if file and Path(file).exists() else []
    return lines[-1].strip() if lines else None


class _Stopping(_InDriver, tune.Stopper):
    """Ends the run when it is told to, or when trial after trial fails for one and the same reason."""

    def __init__(self, engine: Ledger, stop: Callable[[], bool]) -> None:
        self.engine, self.stop = engine, stop

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.stop() or self.engine.hopeless
