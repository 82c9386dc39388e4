"""Record tables of decoders on recall whose layers were replaced after training: `data/layers.parquet`.

A decoder of full layers is trained on recall, of four, six and eight layers (`data/full-4.safetensors` and so
on; `--train` makes them again). Full layers alone are slow to learn the task. So all layers but the second
begin as sliding windows, whose projections full layers then take over and train on.

Then layers are replaced by a sliding window of two positions or linear attention, take over the projections,
and are trained for a few steps with half the loss from distillation. The table of four layers has all
placements with one or two full layers. Those of six and eight have two full layers among sliding windows.

    python benchmarks/record_layers.py

A row is one training: its placement, seed, scores on the validation split, and processor seconds.
"""

import sys
from itertools import combinations, product
from pathlib import Path
from typing import Any

import recorder
import torch
from record_recall import train_alone
from safetensors.torch import save_file
from torch import Tensor

from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.tasks.language_modelling import LanguageData, LanguageModel, LanguageTraining
from automl.tasks.language_modelling.config import FULL, site_name
from automl.tasks.language_modelling.space import TASK, mixer
from automl.training.loop import fit, start
from search.config import TrialConfig

DATA = Path(__file__).parent / "data"
FILE = DATA / "layers.parquet"
KINDS = {4: ("sliding", "linear"), 6: ("sliding",), 8: ("sliding",)}  # by the number of layers
TABLES = ((4, 1), (4, 2), (6, 2), (8, 2))  # layers, and full ones
SEEDS, STEPS, FULL_STEPS, BATCH = 3, 80, 600, 64
WINDOW = 2
HERE = Runtime(device=torch.device("cpu"), precision="fp32")


def placements(depth: int, full: int) -> list[str]:
    """Return all placements with a number of full layers, as kinds of layers separated by spaces."""
    every = []
    for kept in combinations(range(depth), full):
        for kinds in product(KINDS[depth], repeat=depth - full):
            others = iter(kinds)
            every.append(" ".join(FULL if i in kept else next(others) for i in range(depth)))
    return every


def weights_of(depth: int) -> Path:
    """Return the file of the trained decoder of full layers."""
    return DATA / f"full-{depth}.safetensors"


def config(placement: str, seed: int, *, weights: str = "", steps: int = STEPS) -> TrialConfig:
    """Return the training of a placement."""
    kinds = placement.split()
    return TrialConfig(
        task=TASK,
        data=LanguageData(source="recall", context=24, vocabulary=16, pairs=6, examples=steps * BATCH),
        model=LanguageModel(
            options={"depth": len(kinds), "width": 32, "heads": 1, "mlp": 16},
            placement={
                site_name(i): mixer(kind, heads=1, window=WINDOW)
                for i, kind in enumerate(kinds)
                if kind != FULL
            },
            weights=weights,
        ),
        training=LanguageTraining(
            epochs=1,
            batch_size=BATCH,
            learning_rate=2e-3 if weights else 4e-3,
            schedule="one-cycle",
            distil=0.5 if weights else 0.0,
        ),
        metric="accuracy",
        seed=seed,
    )


def train(work: tuple[str, int]) -> dict[str, Any]:
    """Train and return the row."""
    placement, seed = work
    trained = train_alone(config(placement, seed, weights=str(weights_of(len(placement.split())))))
    return {"placement": placement, "seed": seed, **trained}


def train_full(depth: int) -> None:
    """Train a decoder with one full layer, then the decoder of full layers from its weights."""
    torch.set_num_threads(1)
    kinds = ["sliding"] * depth
    kinds[1] = FULL
    weights: dict[str, Tensor] = {}
    for names in (kinds, [FULL] * depth):
        task = open_task(config(" ".join(names), 0, steps=FULL_STEPS), HERE)
        state = start(task)
        own = state.model.state_dict()
        state.model.load_state_dict({**own, **{k: v for k, v in weights.items() if k in own}})
        *_, record = fit(task, state)
        print(f"{' '.join(names)}: accuracy {record['accuracy']:.3f}", flush=True)
        trained = state.model.state_dict()
        weights = {name.replace(".site_mixer.", "."): value.clone() for name, value in trained.items()}
    save_file(weights, weights_of(depth))


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return recorder.read(FILE)


if __name__ == "__main__":
    if "--train" in sys.argv:
        for depth in KINDS:
            train_full(depth)
        sys.exit()
    work = [(name, seed) for seed in range(SEEDS) for table in TABLES for name in placements(*table)]
    recorder.record(__doc__, FILE, work, train, ("placement", "seed"))
