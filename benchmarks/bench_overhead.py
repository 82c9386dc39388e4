"""Measure a trial's overhead in seconds, and the seconds of a search of one trial from command to end.

The same trivial training runs in four ways: in a search (reused actors, the study, MLflow, checkpoints), in
Ray Tune's reused actors (`reused_actors.py`), in a TorchTrainer inside a Tune function, as Ray's
documentation nests them, and in a plain loop in one process. A trial's overhead is the time that its slot was
taken, less the seconds of its training.

A training function runs in a search, in Ray Tune's reused actors, as Ray Tune's function trainable, and in
plain Optuna. It also runs beside the built-in task that trains equally. `python bench_overhead.py functions`
measures only these, `trials` the others, and `reused` what Ray Tune's reused actors take.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import ray
import torch
from built_in_training import config
from harness import Row, compare, read_rows, show, summarise, write
from ray import tune
from reused_actors import run_trials, searching, start_ray
from trivial_training import HIGH, LOW, train_plain

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
NESTED = 6  # each takes as long as a hundred of the other trials
SLOTS = 2
ROUNDS = 3
FUNCTIONS, TUNED = 40, 8  # trials of a function in a round, here and in Optuna, and in Ray Tune
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
    """Return the overhead of a trial, over the last 90 of 100 to exclude the start."""
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


class BuiltInTrial(tune.Trainable):
    """Training of the built-in task, in an actor that the next trial reuses."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.trial = config(0, new_config["lr"])
        return True

    def step(self) -> dict[str, Any]:
        task = open_task(self.trial, Runtime(device=torch.device("cpu")))
        (metrics,) = fit(task, start(task))
        return {**metrics, "training": metrics["seconds"], "end": time.time(), "done": True}


class FunctionTrial(BuiltInTrial):
    """Training of the function, in an actor that the next trial reuses."""

    def step(self) -> dict[str, Any]:
        return {**train_plain(self.config["lr"]), "done": True}


def time_reused(trainable: type[tune.Trainable], low: float, high: float) -> float:
    """Return the overhead of a trial in Ray Tune's reused actors."""
    start_ray()
    results = run_trials(trainable, {"lr": tune.loguniform(low, high)}, num_samples=TRIALS, **searching(1))
    ray.shutdown()
    return overhead([result.metrics for result in results], SLOTS)


def time_nested() -> tuple[float, float]:
    """Return overhead and slot time of a trial in a TorchTrainer with one worker in a Tune function."""
    import ray.train
    import ray.train.torch
    from ray.tune.integration.ray_train import TuneReportCallback

    def worker(values: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        task = open_task(config(values["seed"]), Runtime(device=torch.device("cpu")))
        state = start(task)
        for metrics in fit(task, state):
            ray.train.report(metrics)

    def trial(values: dict[str, Any]) -> None:
        trainer = ray.train.torch.TorchTrainer(
            worker,
            train_loop_config=values,
            scaling_config=ray.train.ScalingConfig(num_workers=1),
            run_config=ray.train.RunConfig(
                storage_path=f"{os.getcwd()}/nested", callbacks=[TuneReportCallback()]
            ),
        )
        trainer.fit()

    ray.init(address="local", num_cpus=SLOTS, include_dashboard=True, log_to_driver=False)
    start_time = time.perf_counter()
    results = tune.Tuner(
        tune.with_resources(trial, {"memory": 2.0**20}),
        param_space={"seed": tune.randint(0, 10**6)},
        tune_config=tune.TuneConfig(num_samples=NESTED, max_concurrent_trials=SLOTS),
        run_config=tune.RunConfig(storage_path=f"{os.getcwd()}/tune", verbose=0),
    ).fit()
    wall = time.perf_counter() - start_time
    ray.shutdown()
    assert not results.errors, results.errors
    training = sum(result.metrics["seconds"] for result in results)
    return (wall * SLOTS - training) / NESTED, wall / NESTED * SLOTS


def time_command() -> float:
    """Return the seconds of a search of one trial, from the command to its end, in a new process."""
    start_time = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "automl.search", "--space", f"{__file__}:trivial", "--trials", "1",
         "--subset", "0.05"],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - start_time


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


def time_function(trials: int = FUNCTIONS) -> float:
    """Return the overhead of a trial of a function in a search of its hyperparameters."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        result = automl.run_search(
            train=f"{FOLDER}/trivial_training.py:train", metric="accuracy", trials=trials,
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


def time_tune() -> float:
    """Return the overhead of a trial of Ray Tune's function trainable."""

    def trainable(values: dict[str, float]) -> None:
        torch.set_num_threads(1)
        tune.report(train_plain(values["lr"]))

    ray.init(address="local", num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    results = tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"lr": tune.loguniform(LOW, HIGH)},
        tune_config=tune.TuneConfig(num_samples=TUNED),
        run_config=tune.RunConfig(storage_path=f"{os.getcwd()}/tune", verbose=0),
    ).fit()
    ray.shutdown()
    assert not results.errors, results.errors
    return overhead([result.metrics for result in results], SLOTS)


def time_optuna() -> float:
    """Return the overhead of a trial of plain Optuna, in one process and in memory."""
    torch.set_num_threads(1)
    ended = []

    def objective(trial: optuna.Trial) -> float:
        ended.append(train_plain(trial.suggest_float("lr", LOW, HIGH, log=True)))
        return ended[-1]["accuracy"]

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.create_study(direction="maximize").optimize(objective, n_trials=FUNCTIONS)
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


def time_functions() -> list[Row]:
    """Return the rows of training functions."""
    accuracy = Metric(name="accuracy", maximize=True)
    function = TrialConfig(
        task="function",
        model=FunctionModel(backbone=f"{FOLDER}/built_in_training.py:train"),
        training=OwnTraining(epochs=1, batch_size=16, reports=accuracy),
    )
    torch.set_num_threads(1)
    every_site = [f"stage{stage}.block{block}" for stage in (1, 2, 3, 4) for block in (1, 2)]
    own, built_in = iter(every_site), iter(every_site)
    calls = {
        "own": time_function,
        "tune": time_tune,
        "optuna": time_optuna,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(ROUNDS):
        names = list(calls)
        for name in names[i:] + names[:i]:
            times[name].append(calls[name]())
    case = "overhead a trial of a function"
    tuned, plain = (list(zip(times["own"], times[peer], strict=True)) for peer in ("tune", "optuna"))
    return [
        compare(
            "a trial of a function with a new placement",
            "the same training as a built-in task",
            lambda: time_trial(function, next(own)),
            lambda: time_trial(config(0), next(built_in)),
            unit="s",
            rounds=len(every_site) - 1,  # The first one warms up.
            higher_is_better=False,
        ),
        summarise(case, "Ray Tune's function trainable", tuned, unit="s", higher_is_better=False),
        summarise(case, "plain Optuna, one process", plain, unit="s", higher_is_better=False),
    ]


def time_trials() -> list[Row]:
    """Return the rows of built-in tasks."""
    search = time_search()
    loop = time_plain_loop()
    trainer, slot = time_nested()
    commands = [time_command() for _ in range(3)]

    def make_row(
        case: str, peer: str, ours: float, theirs: float, spread: tuple[float, float] | None = None
    ) -> Row:
        ratio = theirs / ours
        row = Row(
            case=case,
            peer=peer,
            ours=ours,
            theirs=theirs,
            unit="s",
            spread=spread or (ratio, ratio),
            ratio=ratio,
        )
        show(row)
        return row

    command = statistics.median(commands)
    return [
        make_row(
            f"overhead a trial, {TRIALS} trials", f"nested TorchTrainer, {NESTED} trials", search, trainer
        ),
        make_row(f"overhead a trial, {TRIALS} trials", "plain loop, one process", search, loop),
        make_row(
            "a search of one trial, from command to end",
            "one nested trial, Ray running",
            command,
            slot,
            (slot / max(commands), slot / min(commands)),
        ),
    ]


def time_reused_actors() -> list[Row]:
    """Return the rows of Ray Tune's reused actors. The environment variable ROUNDS sets how many rounds."""
    searched: list[tuple[float, float]] = []
    called: list[tuple[float, float]] = []
    for _ in range(int(os.environ.get("ROUNDS", ROUNDS))):
        searched.append((time_search(), time_reused(BuiltInTrial, 1e-4, 1e-3)))
        called.append((time_function(TRIALS), time_reused(FunctionTrial, LOW, HIGH)))
    return [
        summarise(case, "Ray Tune, reused actors", pairs, unit="s", higher_is_better=False)
        for case, pairs in (
            (f"overhead a trial, {TRIALS} trials", searched),
            (f"overhead a trial of a function, {TRIALS} trials", called),
        )
    ]


PARTS = {"trials": time_trials, "functions": time_functions, "reused": time_reused_actors}


def main() -> None:
    parts = sys.argv[1:] or list(PARTS)
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["AUTOML_CACHE"] = str(Path(scratch) / "cache")
        os.environ["PYTHONPATH"] = str(FOLDER)  # processes import files of this folder
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        for part in parts:  # Each has a record of its own, as they may be measured on different machines.
            rows = PARTS[part]()
            measured = {(row.case, row.peer) for row in rows}
            name = "overhead-reused" if part == "reused" else "overhead"
            kept = [row for row in read_rows(name) if (row.case, row.peer) not in measured]
            write(name, [*kept, *rows])


if __name__ == "__main__":
    main()
