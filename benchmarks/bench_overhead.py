"""Measure a trial's overhead in seconds, and the seconds of a search of one trial from command to end.

The same trivial training runs in three ways: in a search (reused actors, the study, MLflow, checkpoints), in
a TorchTrainer inside a Tune function, as Ray's documentation nests them, and in a plain loop in one process.
A trial's overhead is the time that its slot was taken, less the seconds of its training.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
import torch
from harness import Row, show, write

import automl
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.training.loop import fit, start
from search.config import ImageData, ImageTraining, Model, TrialConfig
from search.study import open_study, read_history

TRIALS = 100
NESTED = 6  # each takes as long as a hundred of the other trials
SLOTS = 2


def config(seed: int, rate: float = 1e-3) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.05),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=ImageTraining(epochs=1, batch_size=16, learning_rate=rate),
        seed=seed,
    )


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
    result = automl.run_search(space=f"{__file__}:trivial", trials=TRIALS, subset=0.05, name="overhead")
    assert (result.completed, result.errors, result.untracked) == (TRIALS, 0, 0), result
    study = open_study(Path("searches/overhead"), name="overhead")
    ends = [(trial.datetime_complete, trial) for trial in study.trials if trial.datetime_complete]
    ends.sort(key=lambda end: end[0])
    late = [trial for _, trial in ends[TRIALS // 10 :]]
    wall = (ends[-1][0] - ends[TRIALS // 10 - 1][0]).total_seconds()
    training = sum(read_history(trial.user_attrs)[-1]["seconds"] for trial in late)
    return (wall * SLOTS - training) / len(late)


def time_nested() -> tuple[float, float]:
    """Return overhead and slot time of a trial in a TorchTrainer with one worker in a Tune function."""
    import ray.train
    import ray.train.torch
    from ray import tune
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
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},  # the space imports the harness
    )  # fmt: skip
    return time.perf_counter() - start_time


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["AUTOML_CACHE"] = str(Path(scratch) / "cache")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
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
    write(
        "overhead",
        [
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
        ],
    )


if __name__ == "__main__":
    main()
