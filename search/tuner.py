"""The engine on Ray Tune: its trials run in actors, wherever there is room."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial

from search.ledger import Ledger
from search.record import TrialRecord

REPORT = "report"  # in a result of Tune's: the trial's Report
RETRIES = 3  # times that a trial goes on after its process or node died

Assignment = Mapping[str, Any]


def run_trials(
    trainable: type[tune.Trainable] | Callable[[dict[str, Any]], None],
    engine: Ledger,
    *,
    assign: Callable[[TrialRecord], Assignment],
    resources: Mapping[str, float],
    concurrent: int,
    folder: Path,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run the engine's trials, `concurrent` at a time, until it has no more.

    trainable: an actor class that reports an epoch a step and is reused from trial to trial, or a function
        that does so in processes of its own. Each result holds a `Report` as `report`. It finds by itself
        what an earlier process of the same trial has left.
    assign: what is sent to a trial's process.
    folder: for Tune's own files, which nobody needs afterwards.
    stop: asked all the time. When it says so, everything is left as it stands, for another run to go on with.
    """
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # what is infeasible has no score
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # MLflow has the metrics
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # `stop` knows
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "1e9"  # the study is the state
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one prints a banner at any verbosity
    bridge = _Bridge(engine)
    tuner = tune.Tuner(
        tune.with_resources(trainable, dict(resources)),
        tune_config=tune.TuneConfig(
            search_alg=_Asking(bridge, assign),
            scheduler=_Cutting(bridge),
            num_samples=-1,  # the engine says when it is over
            max_concurrent_trials=concurrent,
            reuse_actors=isinstance(trainable, type),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder.resolve()),
            callbacks=[_Voice(bridge)],
            stop=_Stopping(engine, stop),
            failure_config=tune.FailureConfig(max_failures=RETRIES),
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
    """The engine, and its number of each of Tune's trials."""

    def __init__(self, engine: Ledger) -> None:
        self.engine = engine
        self.numbers: dict[str, int] = {}


class _Asking(_InDriver, tune.search.Searcher):
    """Tune's searcher: asks the engine."""

    def __init__(self, bridge: _Bridge, assign: Callable[[TrialRecord], Assignment]) -> None:
        plan = bridge.engine.plan
        super().__init__(metric=plan.metric, mode="max" if plan.maximize else "min")
        self.bridge, self.assign = bridge, assign

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        record = self.bridge.engine.ask()
        if record is None:
            return str(self.FINISHED)
        self.bridge.numbers[trial_id] = record.number
        return {"number": record.number, **self.assign(record)}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
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

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        """No preference: Tune takes what waits in order, and looks through no trials that have ended."""

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        report = result.get(REPORT)
        number = self.bridge.numbers[trial.trial_id]
        goes_on = report is None or self.bridge.engine.report(number, report)
        return str(self.CONTINUE if goes_on else self.STOP)


class _Voice(_InDriver, tune.Callback):
    """Tells the engine what Tune tells its callbacks alone."""

    def __init__(self, bridge: _Bridge) -> None:
        self.bridge = bridge

    def on_trial_start(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self.bridge.engine.started(self.bridge.numbers[trial.trial_id])

    def on_trial_error(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        number = self.bridge.numbers[trial.trial_id]
        self.bridge.engine.end(number, None, error=_reason(trial))


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
