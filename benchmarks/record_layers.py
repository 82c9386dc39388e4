"""Record tables of decoders whose layers were replaced after training: `data/layers.parquet`.

Decoders of full layers are trained on recall, of four, six and eight layers, and one of six layers on bytes
of Python's standard library (`data/full-4.safetensors` and so on; `--train NAME` makes one again). Full
layers alone are slow to learn recall. So there all layers but the second begin as sliding windows, whose
projections full layers then take over and train on.

Then layers are replaced by a sliding window or linear attention, take over the projections, and are trained
for a few steps with half the loss from distillation. The table of recall with four layers has all placements
with one or two full layers. The others have two full layers among sliding windows.

    python benchmarks/record_layers.py

A row is one training: its decoder, placement, seed, scores on the validation split, and processor seconds.
"""

import os
import runpy
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import recorder
import torch
from record_recall import train_alone
from safetensors.torch import save_file
from torch import Tensor

from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.language_modelling import FULL, LanguageData, LanguageModel, LanguageTraining, site_name
from automl.tasks.language_modelling.space import TASK, mixer
from automl.training.loop import fit, start
from search.config import TrialConfig

DATA = Path(__file__).parent / "data"
FILE = DATA / "layers.parquet"
SCRIPTS = Path(__file__).parents[1] / "scripts"
TEXT = Path(__file__).parents[1] / "searches" / "bench-layers-text"
SEEDS, STEPS, HALF = 3, 80, 0.5
HERE = Runtime(device=torch.device("cpu"), precision="fp32")


@dataclass(frozen=True)
class Decoder:
    """A decoder of full layers: its data and model, and how it is trained.

    Attributes:
        score: The metric of the table.
        kinds: The types that may replace a layer.
        window: The size of a sliding window.
        steps: The number of steps in which it is trained.
        rates: The learning rates of its training, and of those of its placements.
    """

    name: str
    score: str
    options: dict[str, int]
    kinds: tuple[str, ...]
    window: int
    batch: int
    steps: int
    rates: tuple[float, float]

    @property
    def depth(self) -> int:
        return self.options["depth"]

    @property
    def weights(self) -> Path:
        """File of the trained decoder."""
        return DATA / f"full-{self.name.removeprefix('recall-')}.safetensors"

    def data(self, steps: int) -> LanguageData:
        """Return the data of a training of so many steps. A text is written if it is missing."""
        if self.score == "accuracy":
            examples = steps * self.batch
            return LanguageData(source="recall", context=24, vocabulary=16, pairs=6, examples=examples)
        folder, context = TEXT / str(steps), 128
        if not folder.exists():
            collect = runpy.run_path(str(SCRIPTS / "trained_decoder.py"))["collect_library"]
            new = folder.with_name(f"{steps}-{os.getpid()}")
            collect(new, train_bytes=steps * self.batch * context)
            with suppress(OSError):  # Another process was faster.
                new.rename(folder)
            shutil.rmtree(new, ignore_errors=True)
        return LanguageData(path=str(folder), context=context)

    def config(self, placement: str, seed: int, *, weights: str = "", steps: int = STEPS) -> TrialConfig:
        """Return the training of a placement."""
        heads = self.options["heads"]
        return TrialConfig(
            task=TASK,
            data=self.data(steps),
            model=LanguageModel(
                options=self.options,
                placement={
                    site_name(i): mixer(kind, heads=heads, window=self.window)
                    for i, kind in enumerate(placement.split())
                    if kind != FULL
                },
                weights=weights,
            ),
            training=LanguageTraining(
                epochs=1,
                batch_size=self.batch,
                learning_rate=self.rates[bool(weights)],
                schedule="one-cycle",
                distil=HALF if weights else 0.0,
            ),
            metric=self.score,
            seed=seed,
        )


def _recall(depth: int, *kinds: str) -> Decoder:
    options = {"depth": depth, "width": 32, "heads": 1, "mlp": 16}
    return Decoder(f"recall-{depth}", "accuracy", options, kinds, 2, 64, 600, (4e-3, 2e-3))


BYTES = Decoder(
    "bytes-6",
    "loss",
    {"depth": 6, "width": 64, "heads": 2, "mlp": 64},
    ("sliding",),
    window=16,
    batch=16,
    steps=2400,
    rates=(4e-3, 1e-3),
)
DECODERS = {
    decoder.name: decoder
    for decoder in (_recall(4, "sliding", "linear"), _recall(6, "sliding"), _recall(8, "sliding"), BYTES)
}
# Decoders and numbers of full layers.
TABLES = (("recall-4", 1), ("recall-4", 2), ("recall-6", 2), ("recall-8", 2), ("bytes-6", 2))


def placements(name: str, full: int) -> list[str]:
    """Return all placements with a number of full layers, as kinds of layers separated by spaces."""
    decoder, every = DECODERS[name], []
    for kept in combinations(range(decoder.depth), full):
        for kinds in product(decoder.kinds, repeat=decoder.depth - full):
            others = iter(kinds)
            every.append(" ".join(FULL if i in kept else next(others) for i in range(decoder.depth)))
    return every


def train(work: tuple[str, str, int]) -> dict[str, Any]:
    """Train and return the row."""
    name, placement, seed = work
    decoder = DECODERS[name]
    trained = train_alone(decoder.config(placement, seed, weights=str(decoder.weights)))
    return {"decoder": name, "placement": placement, "seed": seed, **trained}


def train_full(decoder: Decoder) -> None:
    """Train the decoder of full layers, on recall from the weights of one with a single full layer."""
    torch.set_num_threads(1)
    full = [FULL] * decoder.depth
    single = ["sliding" if i != 1 else FULL for i in range(decoder.depth)]
    weights: dict[str, Tensor] = {}
    for names in (full,) if decoder is BYTES else (single, full):
        task = open_task(decoder.config(" ".join(names), 0, steps=decoder.steps), HERE)
        state = start(task)
        own = state.model.state_dict()
        state.model.load_state_dict({**own, **{k: v for k, v in weights.items() if k in own}})
        *_, record = fit(task, state)
        print(f"{' '.join(names)}: {decoder.score} {record[decoder.score]:.3f}", flush=True)
        trained = state.model.state_dict()
        weights = {name.replace(".site_mixer.", "."): value.clone() for name, value in trained.items()}
    save_file(weights, decoder.weights)


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return recorder.read(FILE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        for chosen in sys.argv[2:] or DECODERS:
            train_full(DECODERS[chosen])
        sys.exit()
    work = [
        (table[0], name, seed) for seed in range(SEEDS) for table in TABLES for name in placements(*table)
    ]
    recorder.record(__doc__, FILE, work, train, ("decoder", "placement", "seed"))
