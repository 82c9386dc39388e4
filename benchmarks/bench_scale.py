"""Measure how the time per trial grows in a search of 1,000 trivial trials on two slots.

The benchmark compares the last hundred trials with the first hundred, records the driver's memory, and checks
that MLflow has all trials. The space has seven hyperparameters, so that the sampler has something to model,
and no attention, so that the costs are measured once.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import mlflow
import optuna
import psutil
from harness import Row, show, write

import automl
from search import choices
from search.config import ImageData, Model, TrialConfig
from search.study import open_study


def trivial(trial: optuna.Trial) -> TrialConfig:
    """Draw hyperparameters: the space."""
    training = choices.training(trial, epochs=1)
    return TrialConfig(
        data=ImageData(source="digits", size=32, subset=0.12),
        model=Model(options={"width": 0.25}),
        training=training,
    )


def seconds_a_trial(ends: list[float]) -> float:
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    memory: list[float] = []

    def watch() -> None:
        while True:
            memory.append(psutil.Process().memory_info().rss / 2**20)
            time.sleep(1)

    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["AUTOML_CACHE"] = str(Path(scratch) / "cache")
        threading.Thread(target=watch, daemon=True).start()
        result = automl.run_search(space=f"{__file__}:trivial", trials=trials, subset=0.12, name="scale")
        assert (result.n_trials, result.errors, result.untracked) == (trials, 0, 0), result
        study = open_study(Path("searches/scale"), name="scale")
        ends = sorted(t.datetime_complete.timestamp() for t in study.trials if t.datetime_complete)
        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name("trivial").experiment_id
        runs, token = 0, None
        while True:
            page = client.search_runs([experiment], "tags.`automl.trial` LIKE '%'", page_token=token)
            runs, token = runs + len(page), page.token
            if not token:
                break
    assert runs == trials, f"MLflow has {runs} of {trials} trials"
    # The first ten wait for the actors to start.
    count = max(20, trials // 10)
    first, last = seconds_a_trial(ends[10 : count + 10]), seconds_a_trial(ends[-count:])
    print(f"all {runs} trials are in MLflow; {result.completed} complete, {result.seconds:.0f} s in all")
    quarter = len(memory) // 4
    middle, end = statistics.median(memory[quarter : 2 * quarter]), statistics.median(memory[-quarter:])
    rows = [
        Row(
            case=f"seconds a trial, the last {count} of {trials}",
            peer=f"the first {count}",
            ours=last,
            theirs=first,
            unit="s",
            spread=(first / last, first / last),
            ratio=first / last,
        ),
        Row(
            case="driver's memory, last quarter of the time",
            peer="second quarter",
            ours=end,
            theirs=middle,
            unit="MiB",
            spread=(middle / max(memory), middle / min(memory)),
            ratio=middle / end,
        ),
    ]
    for row in rows:
        show(row)
    write("scale", rows)


if __name__ == "__main__":
    main()
