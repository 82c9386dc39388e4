"""Measure false verdicts of confirmations whose variants are equal and continue shared partial trainings.

Simulated are 2,000 confirmations of six, eight and ten shared partial trainings each. Shared partial
trainings differ by a point. The two variants of each differ by the noise of branches, which is normal, skewed
or has heavy tails, and may be wider in one variant. Real are 20 confirmations on digits with six plain
trainings of four epochs each. These branch after the third epoch into two that differ by 1e-6 in their
weights (`automl.training.shared_training`) and are scored on the test split.

At most 5 % of the outcomes may be `better` or `worse`. The real confirmations take about ten minutes on one
core.
"""

import argparse
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import torch
from harness import write_values

from automl.config.runtime import Runtime
from automl.judge.rules import Evidence, decide
from automl.judge.statistics import paired
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.training.loop import evaluate, fit, start
from automl.training.shared_training import continue_training
from search.config import Model, TrialConfig

SIMULATED, REAL = 2000, 20
SHARED_TRAININGS = 6  # of a real confirmation: the fewest that can show a difference
MARGIN = 0.5  # points
EPOCHS, AT, PERTURB = 4, 3, 1e-6


def noises(random: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Return the noise of two variants in `count` shared partial trainings, `(2, count)`, by kind."""
    normal = random.standard_normal((2, count))
    skewed = random.gamma(2.0, size=(2, count)) - 2.0
    return {
        "normal": normal,
        "wider in one variant": normal * [[1.0], [3.0]],
        "skewed in one variant": np.stack([normal[0], skewed[1]]),
        "heavy tails": random.standard_t(3, (2, count)),
    }


def simulate(count: int) -> dict[str, Counter[str]]:
    """Return the outcomes by kind of noise, of confirmations of `count` shared partial trainings."""
    random = np.random.default_rng(count)
    outcomes: dict[str, Counter[str]] = {}
    for _ in range(SIMULATED):
        shared_trainings = random.standard_normal(count)
        for kind, noise in noises(random, count).items():
            ours, theirs = shared_trainings + 0.2 * noise
            rule = decide(Evidence(differences=[paired(ours - theirs, margin=MARGIN)]))
            outcomes.setdefault(kind, Counter())[rule.outcome] += 1
    return outcomes


def open_digits(seed: int) -> Task:
    training = ImageTraining(epochs=EPOCHS, batch_size=32, learning_rate=3e-3, schedule="flat-cosine")
    config = TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(backbone="xresnet18", options={"width": 0.25}),
        training=training,
        seed=seed,
    )
    return open_task(config, Runtime(device=torch.device("cpu"), precision="fp32"))


def branches(seed: int) -> list[float]:
    """Return the test accuracies [%] of two branches that differ by 1e-6."""
    task = open_digits(seed)
    shared_training = start(task)
    list(islice(fit(task, shared_training), AT))
    accuracies = []
    for variant in (1, 2):
        state = continue_training(task, shared_training, perturb=PERTURB, seed=variant)
        list(fit(task, state))
        accuracies.append(100 * float(evaluate(task, state.scored, "test")["accuracy"]))
    return accuracies


def confirm_digits() -> dict[str, Any]:
    torch.set_num_threads(1)
    outcomes, differences = Counter[str](), []
    for i in range(REAL):
        pairs = np.array([branches(i * SHARED_TRAININGS + seed) for seed in range(SHARED_TRAININGS)])
        gaps = pairs[:, 0] - pairs[:, 1]
        differences += gaps.tolist()
        difference = paired(gaps, margin=MARGIN, resolution=100 / open_digits(0).size("test"))
        outcomes[decide(Evidence(differences=[difference])).outcome] += 1
        print(
            f"  {i + 1} of {REAL}: {dict(outcomes)}, sd of a difference {np.std(differences):.3f}", flush=True
        )
    return {
        "verdicts": outcomes,
        "sd": float(np.std(differences, ddof=1)),
        "shared_trainings": SHARED_TRAININGS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.parse_args()
    values: dict[str, Any] = {}
    for count in (6, 8, 10):
        for kind, outcomes in simulate(count).items():
            rate = (outcomes["better"] + outcomes["worse"]) / SIMULATED
            values[f"simulated, {count} shared partial trainings, {kind}"] = {
                "verdicts": outcomes,
                "false": rate,
            }
            print(f"{count} shared partial trainings, {kind}: {rate:.3f} false", flush=True)
    values["real"] = confirm_digits()
    write_values("shared-nulls", values)


if __name__ == "__main__":
    main()
