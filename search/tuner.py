"""Running a study on Ray Tune: ASHA stops the weak trials, listeners hear of every step."""

import os
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.integration.ray_train import CHECKPOINT_PATH_KEY

from search.record import TRIALS, Listener, State, TrialRecord
from search.searcher import StudySearcher

# Errors in a row with one and the same reason after which a search has nothing to find.
HOPELESS = 3

# At each rung the best third goes on.
REDUCTION = 3


def grace(budget: int) -> int:
    """The first rung: a ninth of the budget, so that at most two rungs cut before its end.

    But two epochs where there are four: after one, the averages of batch norm still lag behind on a
    small dataset, and every validation score is noise.
    """
    return max(1, min(2, budget // 2), ceil(budget / REDUCTION**2))


def run_trials(
    trainable: type[tune.Trainable] | Callable[[dict[str, Any]], None],
    searcher: StudySearcher,
    *,
    trials: int,
    budget: int,
    resources: dict[str, float],
    concurrent: int,
    folder: Path,
    listeners: Sequence[Listener],
) -> list[TrialRecord]:
    """Run `trials` trials, `concurrent` at a time, and return their records in order.

    trainable: trains one configuration in steps, in actors that are reused from trial to trial, or a
        function that does so in processes of its own.
    budget: the value of `searcher.time_attr` at which a trial is finished.
    folder: where Tune keeps the trials' checkpoints.
    """
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"  # what is infeasible has no score
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"  # MLflow has the metrics
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new one prints a banner at any verbosity
    scheduler = tune.schedulers.ASHAScheduler(
        metric=searcher.metric,
        mode=searcher.mode,
        time_attr=searcher.time_attr,
        max_t=budget,
        grace_period=grace(budget),
        reduction_factor=REDUCTION,
        stop_last_trials=False,  # a trial that reached its budget ends by itself, as finished
    )
    voice = _Voice(searcher, listeners)
    tuner = tune.Tuner(
        tune.with_resources(trainable, resources),
        tune_config=tune.TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=trials,
            max_concurrent_trials=concurrent,
            reuse_actors=isinstance(trainable, type),
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=TRIALS,
            storage_path=str(folder.resolve()),
            callbacks=[voice],
            stop=_Hopeless(searcher),
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=1,
                checkpoint_at_end=isinstance(trainable, type),  # a function writes its own
            ),
            verbose=0,
        ),
    )
    tuner.fit()
    return sorted(searcher.records.values(), key=lambda record: record.number)


def _name(trial: TuneTrial) -> str:
    return f"{trial.config['number']:04d}"


class _InDriver:
    """Lives in the driver alone: Tune pickles what it is given, and gets an empty shell of it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Voice(_InDriver, tune.Callback):
    """Tells our listeners what Tune tells its callbacks."""

    def __init__(self, searcher: StudySearcher, listeners: Sequence[Listener]) -> None:
        self.searcher, self.listeners = searcher, listeners

    def on_trial_start(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        record = self.searcher.records[trial.trial_id]
        for listener in self.listeners:
            listener.started(record)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        record = self.searcher.records[trial.trial_id]
        if self.searcher.metric in result:
            record.history.append(result["metrics"])
            for listener in self.listeners:
                listener.reported(record)
        if path := result.get(CHECKPOINT_PATH_KEY):  # of a trial with several workers
            self._saved(record, path)

    def on_trial_complete(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        self._ended(trial)

    def on_trial_error(self, iteration: int, trials: Any, trial: TuneTrial, **info: Any) -> None:
        record = self.searcher.records[trial.trial_id]
        record.state, record.reason = State.ERROR, _reason(trial)
        self._ended(trial)

    def on_checkpoint(
        self, iteration: int, trials: Any, trial: TuneTrial, checkpoint: tune.Checkpoint, **info: Any
    ) -> None:
        self._saved(self.searcher.records[trial.trial_id], checkpoint.path)

    def _saved(self, record: TrialRecord, path: str) -> None:
        record.checkpoint = path
        for listener in self.listeners:
            listener.saved(record)

    def _ended(self, trial: TuneTrial) -> None:
        record = self.searcher.records[trial.trial_id]
        for listener in self.listeners:
            listener.ended(record)


def _reason(trial: TuneTrial) -> str:
    """The last line of a traceback, which names the error."""
    file = trial.error_file
    lines = Path(file).read_text().strip().splitlines() if file and Path(file).exists() else []
    return lines[-1].strip() if lines else "the trial's process ended without a word"


class _Hopeless(_InDriver, tune.Stopper):
    """Ends the search when trial after trial fails for one and the same reason."""

    def __init__(self, searcher: StudySearcher) -> None:
        self.searcher = searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        ended = [r for r in self.searcher.records.values() if r.state is not State.RUNNING][-HOPELESS:]
        failed = all(r.state is State.ERROR for r in ended) and len({r.reason for r in ended}) == 1
        return failed and len(ended) == HOPELESS
