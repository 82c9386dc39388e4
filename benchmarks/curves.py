"""The space of a recorded table of learning curves, and the script that records it.

Every placement of up to two modules on the branches of the first two stages of a narrow xresnet18, trained on
115 digits and validated on all validation images after each epoch, with three seeds. Recording it takes
about 20 minutes on two cores and writes `data/curves.parquet`, from which `bench_search.py` replays searches
without training.
"""

import itertools
import multiprocessing
import sys
import time
from pathlib import Path

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from attention import ATTENTIONS, Spec
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.training.loop import fit, start
from search.config import ImageData, ImageTraining, Model, TrialConfig

FILE = Path(__file__).parent / "data" / "curves.parquet"
SITES = [f"stage{stage}.block{block}.branch" for stage in (1, 2) for block in (1, 2)]
TYPES = list(ATTENTIONS)
EPOCHS = 18
SEEDS = 3


def configure(placement: dict[str, Spec], seed: int = 0) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="digits", size=24, subset=0.1),
        model=Model(backbone="xresnet18", options={"width": 0.125}, placement=placement),
        training=ImageTraining(epochs=EPOCHS, batch_size=16, learning_rate=3e-3),
        seed=seed,
    )


def space(trial: optuna.Trial) -> TrialConfig:
    """The same placements as a search space: sites in ascending order, so that each has one name."""
    modules = trial.suggest_int("modules", 0, 2)
    chosen, lowest = {}, 0
    for i in range(1, modules + 1):
        index = trial.suggest_int(f"site{i}", lowest, len(SITES) - 1 - (modules - i))
        chosen[SITES[index]] = Spec(trial.suggest_categorical(f"type{i}", TYPES))
        lowest = index + 1
    return configure(chosen)


def name_of(config: TrialConfig) -> str:
    """A placement as the table names it."""
    return " + ".join(f"{spec.type}@{site}" for site, spec in config.model.placement.items()) or "plain"


def placements() -> list[dict[str, Spec]]:
    """All of them."""
    found: list[dict[str, Spec]] = []
    for modules in (0, 1, 2):
        for sites in itertools.combinations(SITES, modules):
            for types in itertools.product(TYPES, repeat=modules):
                found.append({site: Spec(kind) for site, kind in zip(sites, types, strict=True)})
    return found


def train(work: tuple[dict[str, Spec], int]) -> tuple[str, int, list[float]]:
    """The validation accuracy after each epoch."""
    torch.set_num_threads(1)
    placement, seed = work
    config = configure(placement, seed)
    runtime = Runtime(device=torch.device("cpu"), precision="fp32")
    task = open_task(config, runtime)
    whole = open_task(config.change(data={"subset": 1.0}), runtime)
    task.evaluate = whole.evaluate  # type: ignore[method-assign]
    return name_of(config), seed, [metrics["accuracy"] for metrics in fit(task, start(task))]


def main() -> None:
    work = [(placement, seed) for placement in placements() for seed in range(SEEDS)]
    begun = time.perf_counter()
    rows = []
    with multiprocessing.get_context("spawn").Pool() as pool:
        for i, row in enumerate(pool.imap_unordered(train, work, chunksize=4), start=1):
            rows.append(row)
            if i % 50 == 0:
                left = (time.perf_counter() - begun) / i * (len(work) - i)
                print(f"{i} of {len(work)}, about {left / 60:.0f} minutes left", file=sys.stderr, flush=True)
    rows.sort()
    FILE.parent.mkdir(exist_ok=True)
    table = pa.table(
        {
            "placement": pa.array([row[0] for row in rows]).dictionary_encode(),
            "seed": pa.array([row[1] for row in rows], pa.int8()),
            "accuracy": pa.array([row[2] for row in rows], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, FILE, compression="zstd")
    print(f"wrote {len(rows)} curves of {EPOCHS} epochs to {FILE} ({FILE.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
