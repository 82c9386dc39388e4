"""Record a table of all placements of six layers on associative recall: `data/recall.parquet`.

One layer of the decoder is full attention. Each other layer is a sliding window of two positions or linear
attention, so there are 6 x 32 = 192 placements. Each is trained with `SEEDS` by the product's own loop. The
data is that of the space `recall` of two layers, in fewer steps.

    python benchmarks/record_recall.py --hours 1

The script continues the file and writes it after every few trainings, one seed of all placements after the
other. A row is one training: its placement, seed, scores on the validation split, and processor seconds.
"""

import random
import time
from itertools import product
from pathlib import Path
from typing import Any

import recorder
import torch

from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.language_modelling import FULL, LanguageData, LanguageModel, LanguageTraining, site_name
from automl.tasks.language_modelling.space import TASK, mixer
from automl.training.loop import fit, start
from search.config import TrialConfig

FILE = Path(__file__).parent / "data" / "recall.parquet"
DEPTH, KINDS = 6, ("sliding", "linear")
SEEDS = 3
STEPS, BATCH = 450, 64
WINDOW = 2


def placements() -> list[str]:
    """Return all placements with one full layer, always in the same mixed order.

    A placement is the kinds of its layers, separated by spaces.
    """
    every = [
        " ".join([*others[:full], FULL, *others[full:]])
        for full in range(DEPTH)
        for others in product(KINDS, repeat=DEPTH - 1)
    ]
    return random.Random(0).sample(every, len(every))


def config(placement: str, seed: int) -> TrialConfig:
    return TrialConfig(
        task=TASK,
        data=LanguageData(source="recall", context=24, vocabulary=16, pairs=6, examples=STEPS * BATCH),
        model=LanguageModel(
            options={"depth": DEPTH, "width": 32, "heads": 1, "mlp": 16},
            placement={
                site_name(i): mixer(kind, heads=1, window=WINDOW)
                for i, kind in enumerate(placement.split())
                if kind != FULL
            },
        ),
        training=LanguageTraining(epochs=1, batch_size=BATCH, learning_rate=5e-3, schedule="one-cycle"),
        metric="accuracy",
        seed=seed,
    )


def train(work: tuple[str, int]) -> dict[str, Any]:
    """Train and return the row."""
    return {"placement": work[0], "seed": work[1], **train_alone(config(*work))}


def train_alone(config: TrialConfig) -> dict[str, float]:
    """Train in float32 with one thread. Return the validation scores and the processor seconds."""
    torch.set_num_threads(1)
    began = time.process_time()
    task = open_task(config, Runtime(device=torch.device("cpu"), precision="fp32"))
    *_, record = fit(task, start(task))
    return {
        "accuracy": record["accuracy"],
        "loss": record["loss"],
        "seconds": time.process_time() - began,
    }


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return recorder.read(FILE)


if __name__ == "__main__":
    work = [(placement, seed) for seed in range(SEEDS) for placement in placements()]
    recorder.record(__doc__, FILE, work, train, ("placement", "seed"))
