"""Measure how the time per trial grows in a search of trivial trials, and the driver's part of it.

The first benchmark has 1,000 trials on two slots. It compares the last hundred with the first hundred,
records the driver's memory, and checks that MLflow has all trials. The space has seven hyperparameters, so
that the sampler has something to model, and no attention, so that the costs are measured once.

`--driver` measures the driver alone, without Ray, MLflow and trainings, after 100, 1,000 and 10,000 trials:
it draws a trial of the space `digits`, writes it to the journal, gets its report and deletes the checkpoints
of trials that are not among the best. The earlier trials are drawn at random. At each count, as many trials
follow as the model of placements skips between two fits, or 40. So the mean includes a fit. The time of the
processor hardly depends on other programs. The load is that of the machine.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import optuna
import psutil
from harness import Row, file_of, show, versions, write, write_values
from optuna.study import StudyDirection
from optuna.trial import create_trial
from threadpoolctl import threadpool_limits

import automl
from automl.callbacks.retention import CheckpointRetention
from automl.storage.storage import Storage
from automl.tasks.image_classification import ImageData
from search import choices
from search.class_metrics import ACCURACY
from search.config import Model, TrialConfig
from search.placement_sampler import STALE
from search.record import Report, State
from search.samplers import load_sampler
from search.search_scheduler import SearchScheduler
from search.space import SPACES, draw_randomly
from search.study import CONFIG, EPOCH, PROFILE, ROLE, create_study, open_study
from search.trial_scheduler import Plan


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


COUNTS = (100, 1000, 10_000)
PARAMS = {"params": 1e6}
LEAST = 40  # measured trials at a count, at least


def metrics(config: TrialConfig, random: np.random.Generator) -> dict[str, float]:
    """Return made-up metrics of a training."""
    modules = config.model.placement.items()
    gain = sum(zlib.crc32(f"{site} {spec.type}".encode()) / 2**32 - 0.5 for site, spec in modules)
    score = 0.6 + 0.01 * (gain + random.standard_normal())
    return {"epoch": 1.0, "resource": 1.0, "seconds": 1.0, "accuracy": score, "loss": 1 - score}


def fill(study: optuna.Study, trials: int, random: np.random.Generator) -> None:
    """Add trials that are drawn at random."""
    done = len(study.get_trials(deepcopy=False))
    for trial, config in draw_randomly(SPACES["digits"], trials - done, seed=done):
        assert config is not None
        values = metrics(config, random)
        attributes = {ROLE: "candidate", CONFIG: config.to_json(), PROFILE: PARAMS, f"{EPOCH}1": values}
        study.add_trial(
            create_trial(
                value=values["accuracy"],
                params=trial.params,
                distributions=trial.distributions,
                user_attrs=attributes,
            )
        )


def drive(scheduler: SearchScheduler, trials: int, random: np.random.Generator) -> np.ndarray:
    """Run trials with made-up metrics. Return the time of each, and that of the processor [ms]."""
    times = []
    for _ in range(trials):
        start = np.array([time.perf_counter(), time.process_time()])
        record = scheduler.ask()
        assert record is not None
        scheduler.started(record.number)
        report = Report(history=[metrics(record.config, random)], profile=PARAMS, finished=True)
        scheduler.end(record.number, report)
        times.append(1e3 * (np.array([time.perf_counter(), time.process_time()]) - start))
    return np.array(times).T


def time_driver() -> dict[str, dict[str, Any]]:
    """Return the driver's time per trial after each number of trials [ms]."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan = Plan(trials=None, budget=1, metric=ACCURACY)
    random, results = np.random.default_rng(0), {}
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        study = create_study(Path(folder), name="driver", direction=StudyDirection.MAXIMIZE)
        for count in COUNTS:
            fill(study, count, random)
            scheduler = SearchScheduler(study, SPACES["digits"], plan, load_sampler("placement", seed=count))
            retention = CheckpointRetention(Storage(folder), plan, scheduler.records.values(), keep=3)
            scheduler.callbacks.append(retention)
            wall, processor = drive(scheduler, max(LEAST, count // STALE), random)
            results[str(count)] = {
                "trials": len(wall),
                "mean": wall.mean(),
                "median": float(np.median(wall)),
                "5 % to 95 %": np.quantile(wall, [0.05, 0.95]).tolist(),
                "mean of the processor": processor.mean(),
                "median of the processor": float(np.median(processor)),
                "5 % to 95 % of the processor": np.quantile(processor, [0.05, 0.95]).tolist(),
                "load": os.getloadavg()[0],
            }
            print(f"{count} trials: {results[str(count)]} ms", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--driver", action="store_true", help="measure the driver alone")
    options = parser.parse_args()
    if options.driver:
        kept = json.loads(file_of("scale").read_text())
        driver = {"command": "python bench_scale.py --driver", "versions": versions(), "ms": time_driver()}
        write_values("scale", {**kept, "driver": driver})
    else:
        measure_search(options.trials)


def measure_search(trials: int) -> None:
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
        assert (len(result.trials), result.counts[State.ERROR], result.untracked) == (trials, 0, 0), result
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
    print(
        f"all {runs} trials are in MLflow; {result.counts[State.COMPLETE]} complete, "
        f"{result.seconds:.0f} s in all"
    )
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
