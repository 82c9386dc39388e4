"""Time the way to a verdict on digits: 16 trials, then 2 finalists and the baseline with 7 fresh seeds.

This project runs `automl search --confirm` with an empty cache. It would train controls, which the peer does
not have, if a finalist were better, which the printed verdict shows.

Two peers do the same job with fastai's Learner in Ray Tune, OptunaSearch with ASHA, and the seeds as further
Tune trials. They choose fastai's xresnet18 at a quarter of its width, with or without fastai's
self-attention, and the same hyperparameters. Both run on two cores, one trial on each. `reused` trains in a
class in reused actors (`reused_actors.py`), as an expert of Ray Tune does. `nested` trains in Ray Train's
TorchTrainer in a Tune function, as Ray's documentation nests them. `python bench_verdict.py reused` measures
this peer alone.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import Row, show, write

TRIALS, TOP, SEEDS, EPOCHS = 16, 2, 7, 6
PEERS = {
    "reused": "fastai in Tune, reused actors, OptunaSearch + ASHA",
    "nested": "fastai in TorchTrainer in Tune, OptunaSearch + ASHA",
}


def ours(folder: Path) -> dict[str, float]:
    """Return wall time, the search's time, seconds of training, and mean test accuracy of the variants."""
    automl = Path(sys.executable).parent / "automl"
    environment = {**os.environ, "AUTOML_CACHE": str(folder / "cache")}
    environment.pop("MLFLOW_TRACKING_URI", None)

    command = [
        str(automl), "search", "--space", "digits", "--trials", str(TRIALS), "--name", "bench",
        "--confirm", "--top", str(TOP), "--seeds", str(SEEDS), "--json",
    ]  # fmt: skip
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    wall = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    searched, verdict = result["seconds"], result["confirmation"]
    print(verdict["headline"], verdict["figures"], sep="\n", flush=True)
    scores = [
        s
        for variant in verdict["variants"]
        if variant["role"] in ("baseline", "finalist")
        for s in variant["scores"].values()
    ]
    return {
        "wall": wall,
        "search": searched,
        "confirm": wall - searched,
        "training": _trained(folder / "searches" / "bench"),
        "accuracy": 100 * statistics.mean(scores),
    }


def _trained(folder: Path) -> float:
    """Return the seconds of the epochs in both studies, summed over the slots."""
    from search.study import open_study, read_history

    total = 0.0
    for study_folder, name in ((folder, "bench"), (folder / "confirm", "bench-confirm")):
        study = open_study(study_folder, name=name)
        total += sum(m["seconds"] for trial in study.trials for m in read_history(trial.user_attrs))
    return total


def theirs(folder: Path, peer: str) -> dict[str, float]:
    """Return the same figures of a peer, run in a process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, peer, "here"], cwd=folder, capture_output=True, text=True,
        # Ray Train frees resources of stopped trials through the latest cluster in Ray's folder. If that is
        # another cluster, it waits for ever.
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(folder)},
    )  # fmt: skip
    wall = time.perf_counter() - start
    assert done.returncode == 0, done.stderr[-3000:]
    return {"wall": wall, **json.loads(done.stdout.splitlines()[-1])}


def save_digits(root: Path) -> None:
    """Write the digits as PNG files in a folder for each class, a fifth of them as the test split."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    indices = np.arange(len(digits.target))
    rest, test = train_test_split(indices, test_size=0.2, stratify=digits.target, random_state=0)
    train, valid = train_test_split(rest, test_size=0.2, stratify=digits.target[rest], random_state=0)
    for split, members in (("train", train), ("valid", valid), ("test", test)):
        for i in members:
            folder = root / split / str(digits.target[i])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[i] * 255 / 16).astype("uint8")).save(folder / f"{i}.png")


def build_learner(values: dict[str, Any], *callbacks: Any) -> Any:
    """Build fastai's Learner of one configuration."""
    import torch
    from fastai.vision.all import (
        Adam,
        CrossEntropyLossFlat,
        ImageDataLoaders,
        Learner,
        Resize,
        accuracy,
        set_seed,
    )
    from fastai.vision.models.xresnet import ResBlock, XResNet

    torch.set_num_threads(1)
    set_seed(values["seed"], reproducible=True)
    loaders = ImageDataLoaders.from_folder(
        Path(values["data"]),
        valid=values["valid"],
        train="train",
        item_tfms=Resize(32),
        bs=values["batch_size"],
        num_workers=0,
    )
    return Learner(
        loaders,
        XResNet(ResBlock, 1, [2, 2, 2, 2], n_out=10, widen=0.25, sa=values["sa"], sym=values["sym"]),
        loss_func=CrossEntropyLossFlat(label_smoothing=values["label_smoothing"]),
        opt_func=Adam,
        metrics=accuracy,
        wd=values["weight_decay"],
        cbs=callbacks,
    )


def worker(values: dict[str, Any]) -> None:
    """Train one configuration with fastai and report each epoch to Ray Train."""
    import ray.train
    from fastai.vision.all import Callback

    class Report(Callback):
        order = 60

        def before_epoch(self) -> None:
            self.start = time.perf_counter()

        def after_epoch(self) -> None:
            score = float(self.learn.recorder.values[-1][-1])
            ray.train.report({"accuracy": score, "seconds": time.perf_counter() - self.start})

    learner = build_learner(values, Report())
    with learner.no_bar(), learner.no_logging():
        learner.fit_one_cycle(EPOCHS, values["learning_rate"])


def tune_reused(space: dict[str, Any], _: str, **more: Any) -> Any:
    """Return the results of trials in reused actors, which train an epoch of the one-cycle policy a step."""
    from fastai.callback.schedule import ParamScheduler, combined_cos
    from ray import tune
    from reused_actors import run_trials

    class Training(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            values = new_config.get("variant", new_config)
            self.learner, self.epoch, rate = build_learner(values), 0, values["learning_rate"]
            self.cycle = {
                "lr": combined_cos(0.25, rate / 25, rate, rate / 1e5),
                "mom": combined_cos(0.25, 0.95, 0.85, 0.95),
            }
            return True

        def step(self) -> dict[str, Any]:
            def part(schedule: Any) -> Any:
                return lambda progress: schedule((self.epoch + progress) / EPOCHS)

            start = time.perf_counter()
            with self.learner.no_bar(), self.learner.no_logging():
                self.learner.fit(1, cbs=ParamScheduler({name: part(s) for name, s in self.cycle.items()}))
            self.epoch += 1
            score = float(self.learner.recorder.values[-1][-1])
            seconds = time.perf_counter() - start
            return {"accuracy": score, "seconds": seconds, "done": self.epoch == EPOCHS}

    return run_trials(Training, space, **more)


def tune_nested(space: dict[str, Any], name: str, **more: Any) -> Any:
    """Return the results of trials that start a TorchTrainer each."""
    import ray.train
    import ray.train.torch
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    folder = Path.cwd()

    def trial(values: dict[str, Any]) -> None:
        trainer = ray.train.torch.TorchTrainer(
            worker,
            train_loop_config=values.get("variant", values),
            scaling_config=ray.train.ScalingConfig(num_workers=1),
            run_config=ray.train.RunConfig(
                storage_path=str(folder / "train"), callbacks=[TuneReportCallback()]
            ),
        )
        trainer.fit()

    results = tune.Tuner(
        tune.with_resources(trial, {"memory": 2.0**20}),
        param_space=space,
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", max_concurrent_trials=2, **more),
        run_config=tune.RunConfig(storage_path=str(folder / name), verbose=0),
    ).fit()
    assert not results.errors, results.errors
    return results


def run_peer(peer: str) -> None:
    """Do a peer's whole job and print its figures as JSON."""
    import ray
    from ray import tune
    from reused_actors import searching

    folder = Path.cwd()
    save_digits(folder / "digits")
    nested = peer == "nested"
    ray.init(address="local", num_cpus=2, include_dashboard=nested, log_to_driver=False)
    tune_space = tune_nested if nested else tune_reused
    space = {
        "data": str(folder / "digits"),
        "valid": "valid",
        "seed": 0,
        "sa": tune.choice([False, True]),
        "sym": tune.choice([False, True]),
        "learning_rate": tune.loguniform(3e-4, 3e-2),
        "weight_decay": tune.loguniform(1e-4, 3e-1),
        "batch_size": tune.choice([32, 64, 128]),
        "label_smoothing": tune.uniform(0.0, 0.2),
    }
    start = time.perf_counter()
    trials = tune_space(space, "tune", num_samples=TRIALS, **searching(EPOCHS))
    searched = time.perf_counter() - start
    training = [result.metrics_dataframe["seconds"].sum() for result in trials]
    ranked = sorted(trials, key=lambda result: result.metrics["accuracy"], reverse=True)
    finalists = [r.config for r in ranked if r.config["sa"]][:TOP]
    baseline = [r.config for r in ranked if not r.config["sa"]][:1]
    variants = [*baseline, *finalists]
    grid = tune.grid_search(
        [{**variant, "valid": "test", "seed": seed} for seed in range(1, SEEDS + 1) for variant in variants]
    )
    start = time.perf_counter()
    results = tune_space({"variant": grid}, "seeds")
    confirmed = time.perf_counter() - start
    training += [result.metrics_dataframe["seconds"].sum() for result in results]
    ray.shutdown()
    print(
        json.dumps(
            {
                "search": searched,
                "confirm": confirmed,
                "training": float(sum(training)),
                "accuracy": 100 * statistics.mean(result.metrics["accuracy"] for result in results),
            }
        )
    )


def measure_peer(peer: str) -> list[Row]:
    """Return the rows of this project and a peer, measured in turn."""
    rounds: list[dict[str, dict[str, float]]] = []
    measures: dict[str, Callable[[Path], dict[str, float]]] = {
        "ours": ours,
        "theirs": partial(theirs, peer=peer),
    }
    for i in range(int(os.environ.get("ROUNDS", "3"))):
        rounds.append({})
        for name in list(measures)[:: 1 if i % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                rounds[-1][name] = measures[name](Path(folder))
            print(name, rounds[-1][name], flush=True)

    def make_row(case: str, key: str, unit: str, better: int) -> Row:
        pairs = [(times["ours"], times["theirs"]) for times in rounds]
        ratios = [(a[key] / b[key]) ** better for a, b in pairs]
        row = Row(
            case=f"{case}, from new weights",
            peer=PEERS[peer],
            ours=statistics.median(a[key] for a, _ in pairs),
            theirs=statistics.median(b[key] for _, b in pairs),
            unit=unit,
            spread=(min(ratios), max(ratios)),
            ratio=statistics.median(ratios),
        )
        show(row)
        return row

    return [
        make_row(case, key, unit, better)
        for case, key, unit, better in (
            ("from nothing to a verdict", "wall", "s", -1),
            ("of it, the search", "search", "s", -1),
            ("of it, the seeds", "confirm", "s", -1),
            ("seconds of training, over both slots", "training", "s", -1),
            ("mean test accuracy of baseline and finalists", "accuracy", "%", 1),
        )
    ]


def main() -> None:
    for peer in sys.argv[1:] or PEERS:  # Each has a record of its own, as machines may differ.
        write("verdict-reused" if peer == "reused" else "verdict", measure_peer(peer))


if __name__ == "__main__":
    run_peer(sys.argv[1]) if sys.argv[2:] == ["here"] else main()
