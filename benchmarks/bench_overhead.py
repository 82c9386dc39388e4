"""Measure a trial's overhead: the seconds that its slot was taken, less those of its training.

The peer is what an expert of Ray Tune writes (`reused_actors.py`): one experiment of a class in reused
actors, with OptunaSearch and ASHA. In the part `tracked` it writes a checkpoint for each trial and logs to
MLflow, as a search does. In the part `reused` it does not. The part `plain` compares with a plain loop in one
process and with plain Optuna, which write nothing. It also compares a trial of a training function with one
of the built-in task that trains equally. `python bench_overhead.py tracked` measures one part.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import ray
import torch
from built_in_training import config
from harness import Row, compare, summarise, write
from ray import tune
from reused_actors import Trial, run_trials, searching, start_ray
from trivial_training import HIGH, LOW, network, train_network, train_plain

import attention
import automl
from automl.config.nouns import Terms
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.task import open_task
from automl.tasks.function import FunctionModel
from automl.training.loop import fit, start
from automl.trials.job import Trainings
from automl.trials.trial import build_assignment, train_trial
from search.config import TrialConfig
from search.config.sections import OwnTraining
from search.metric import Metric
from search.record import State
from search.study import open_study, read_history

TRIALS = int(os.environ.get("TRIALS", "100"))
SLOTS = 2
ROUNDS = int(os.environ.get("ROUNDS", "5"))
FOLDER = Path(__file__).parent


def trivial(trial: optuna.Trial) -> TrialConfig:
    """Draw a learning rate: the space."""
    return config(0, trial.suggest_float("learning_rate", 1e-4, 1e-3))


def time_plain_loop() -> float:
    """Return the overhead of a trial in a loop: all but the seconds that the epochs report."""
    torch.set_num_threads(1)
    start_time, training = time.perf_counter(), 0.0
    for seed in range(TRIALS):
        task = open_task(config(seed), Runtime(device=torch.device("cpu")))
        training += sum(metrics["seconds"] for metrics in fit(task, start(task)))
    return (time.perf_counter() - start_time - training) / TRIALS


def time_search() -> float:
    """Return the overhead of a trial. The first tenth of them is the start."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = automl.run_search(
            space=f"{__file__}:trivial", trials=TRIALS, subset=0.05, storage=folder, name="overhead"
        )
        counts = (result.counts[State.COMPLETE], result.counts[State.ERROR], result.untracked)
        assert counts == (TRIALS, 0, 0), result
        study = open_study(Path(folder, "overhead"), name="overhead")
        ends = [(trial.datetime_complete, trial) for trial in study.trials if trial.datetime_complete]
    ends.sort(key=lambda end: end[0])
    late = [trial for _, trial in ends[TRIALS // 10 :]]
    wall = (ends[-1][0] - ends[TRIALS // 10 - 1][0]).total_seconds()
    training = sum(read_history(trial.user_attrs)[-1]["seconds"] for trial in late)
    return (wall * SLOTS - training) / len(late)


class BuiltInTrial(Trial):
    """Training of the built-in task, in an actor that the next trial reuses."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.trial = config(0, new_config["lr"])
        return True

    def step(self) -> dict[str, Any]:
        task = open_task(self.trial, Runtime(device=torch.device("cpu")))
        state = start(task)
        (metrics,) = fit(task, state)
        self.model = state.model
        return {**metrics, "training": metrics["seconds"], "end": time.time(), "done": True}


class FunctionTrial(BuiltInTrial):
    """Training of the function, in an actor that the next trial reuses."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.rate = new_config["lr"]
        return True

    def step(self) -> dict[str, Any]:
        self.model = network()
        optimizer = torch.optim.Adam(self.model.parameters(), self.rate)
        return {**train_network(self.model, optimizer), "done": True}


def time_reused(trainable: type[tune.Trainable], low: float, high: float, *, is_tracked: bool) -> float:
    """Return the overhead of a trial in Ray Tune's reused actors."""
    start_ray()
    results = run_trials(
        trainable, {"lr": tune.loguniform(low, high)}, is_tracked, num_samples=TRIALS, **searching(1)
    )
    ray.shutdown()
    return overhead([result.metrics for result in results], SLOTS)


class Plain(optuna.samplers.RandomSampler):
    """Draws no module."""

    def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
        """Draw a value."""
        return 0 if name == "modules" else super().sample_independent(study, trial, name, distribution)


def overhead(trials: Sequence[Mapping[str, float]], slots: int) -> float:
    """Return the overhead of a trial from the ends and the seconds of all. The first tenth is the start."""
    trials = sorted(trials, key=lambda trial: trial["end"])
    skipped = max(slots, len(trials) // 10)
    wall = trials[-1]["end"] - trials[skipped - 1]["end"]
    late = trials[skipped:]
    return (wall * slots - sum(trial["training"] for trial in late)) / len(late)


def time_function() -> float:
    """Return the overhead of a trial of a function in a search of its hyperparameters."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = automl.run_search(
            train=f"{FOLDER}/trivial_training.py:train", metric="accuracy", trials=TRIALS,
            sampler="bench_overhead:Plain", equal="epochs", concurrent=SLOTS,
            storage=folder, name="functions",
        )  # fmt: skip
        assert result.counts[State.ERROR] == 0, result
        study = open_study(Path(folder, "functions"), name="functions")
        ended = [
            {**read_history(trial.user_attrs)[-1], "end": trial.datetime_complete.timestamp()}
            for trial in study.trials
            if trial.datetime_complete
        ]
    return overhead(ended, SLOTS)


def time_optuna() -> float:
    """Return the overhead of a trial of plain Optuna, in one process and in memory."""
    torch.set_num_threads(1)
    ended = []

    def objective(trial: optuna.Trial) -> float:
        ended.append(train_plain(trial.suggest_float("lr", LOW, HIGH, log=True)))
        return ended[-1]["accuracy"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(direction="maximize").optimize(objective, n_trials=TRIALS)
    return overhead(ended, 1)


def time_trial(plain: TrialConfig, site: str) -> float:
    """Return the seconds of a trial with a new placement, in this process."""
    placed = plain.change(model={"placement": {site: attention.Spec("ssa")}})
    start_time = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        trainings = Trainings(location=Storage(folder), baseline=plain, terms=Terms(equal="epochs"))
        assignment = build_assignment(placed, Storage(folder), trainings)
        *_, report = train_trial(assignment, Runtime(device=torch.device("cpu")))
    assert report.finished, report
    return time.perf_counter() - start_time


def compare_placements() -> Row:
    """Compare trials with new placements: those of a training function and those of the built-in task."""
    accuracy = Metric(name="accuracy", maximize=True)
    function = TrialConfig(
        task="function",
        model=FunctionModel(backbone=f"{FOLDER}/built_in_training.py:train"),
        training=OwnTraining(epochs=1, batch_size=16, reports=accuracy),
    )
    torch.set_num_threads(1)
    every_site = [f"stage{stage}.block{block}" for stage in (1, 2, 3, 4) for block in (1, 2)]
    own, built_in = iter(every_site), iter(every_site)
    return compare(
        "a trial of a function with a new placement",
        "the same training as a built-in task",
        lambda: time_trial(function, next(own)),
        lambda: time_trial(config(0), next(built_in)),
        unit="s",
        rounds=len(every_site) - 1,  # The first one warms up.
        higher_is_better=False,
    )


def measure(*pairs: tuple[str, str, Callable[[], float], Callable[[], float]]) -> list[Row]:
    """Measure pairs of a case, a peer, this project's call and the peer's, in turn."""
    times: list[list[tuple[float, float]]] = [[] for _ in pairs]
    for i in range(ROUNDS):
        for (case, peer, ours, theirs), row in zip(pairs, times, strict=True):
            row.append((ours(), theirs()) if i % 2 == 0 else (theirs(), ours())[::-1])
            print(f"{case}: {row[-1][0]:.4f} s, {peer}: {row[-1][1]:.4f} s", flush=True)
    return [
        summarise(case, peer, row, unit="s", higher_is_better=False)
        for (case, peer, *_), row in zip(pairs, times, strict=True)
    ]


OF_TASK = f"overhead a trial, {TRIALS} trials"
OF_FUNCTION = f"overhead a trial of a function, {TRIALS} trials"


def compare_reused(*, is_tracked: bool) -> list[Row]:
    """Compare with Ray Tune's reused actors."""
    peer = "Ray Tune, reused actors" + ", checkpoints, MLflow" * is_tracked
    built_in = partial(time_reused, BuiltInTrial, 1e-4, 1e-3, is_tracked=is_tracked)
    function = partial(time_reused, FunctionTrial, LOW, HIGH, is_tracked=is_tracked)
    return measure((OF_TASK, peer, time_search, built_in), (OF_FUNCTION, peer, time_function, function))


def compare_plain() -> list[Row]:
    """Compare with loops in one process, and a function with the built-in task."""
    rows = measure(
        (OF_TASK, "plain loop, one process", time_search, time_plain_loop),
        (OF_FUNCTION, "plain Optuna, one process", time_function, time_optuna),
    )
    return [*rows, compare_placements()]


PARTS: dict[str, tuple[str, Callable[[], list[Row]]]] = {
    "tracked": ("overhead-tracked", partial(compare_reused, is_tracked=True)),
    "reused": ("overhead-reused", partial(compare_reused, is_tracked=False)),
    "plain": ("overhead", compare_plain),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["AUTOML_CACHE"] = str(Path(scratch) / "cache")
        os.environ["PYTHONPATH"] = str(FOLDER)  # processes import files of this folder
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        for part in (
            sys.argv[1:] or PARTS
        ):  # Each has a record, as they may be measured on different machines.
            name, call = PARTS[part]
            write(name, call())


if __name__ == "__main__":
    main()
