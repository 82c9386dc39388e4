"""Time the way to a verdict on digits: 16 trials, then 2 finalists and the baseline with 7 fresh seeds.

This project runs `automl search --confirm` with an empty cache. It would train controls, which the peer does
not have, if a finalist were better, which the printed verdict shows.

The peer does the same job as an expert of Ray Tune writes it (`reused_actors.py`): a class in reused actors
that trains with fastai's Learner, OptunaSearch with ASHA, checkpoints, MLflow, and the seeds as a further
experiment. It chooses fastai's xresnet18 at a quarter of its width, with or without fastai's self-attention,
and the same hyperparameters. Both run on two cores, one trial on each.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Row, show, write

TRIALS, TOP, SEEDS, EPOCHS = 16, 2, 7, 6
PEER = "fastai in Tune, reused actors, OptunaSearch + ASHA, checkpoints, MLflow"


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


def theirs(folder: Path) -> dict[str, float]:
    """Return the same figures of the peer, run in a process."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "peer"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )
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


def tune_reused(space: dict[str, Any], **more: Any) -> Any:
    """Return the results of trials in reused actors, which train an epoch of the one-cycle policy a step."""
    from fastai.callback.schedule import ParamScheduler, combined_cos
    from reused_actors import Trial, run_trials

    class Training(Trial):
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
            self.model = self.learner.model
            self.optimizer = self.learner.opt if self.epoch < EPOCHS else None
            score = float(self.learner.recorder.values[-1][-1])
            seconds = time.perf_counter() - start
            return {"accuracy": score, "seconds": seconds, "done": self.epoch == EPOCHS}

    return run_trials(Training, space, **more)


def run_peer() -> None:
    """Do the peer's whole job and print its figures as JSON."""
    import ray
    from ray import tune
    from reused_actors import searching, start_ray

    folder = Path.cwd()
    save_digits(folder / "digits")
    start_ray()
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
    trials = tune_reused(space, num_samples=TRIALS, **searching(EPOCHS))
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
    results = tune_reused({"variant": grid})
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


def measure() -> list[Row]:
    """Return the rows of this project and the peer, measured in turn."""
    rounds: list[dict[str, dict[str, float]]] = []
    measures: dict[str, Callable[[Path], dict[str, float]]] = {"ours": ours, "theirs": theirs}
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
            peer=PEER,
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
    write("verdict", measure())


if __name__ == "__main__":
    run_peer() if sys.argv[1:] == ["peer"] else main()
