"""Record a table of placements on real images: `data/nette-*.parquet`.

The model is a quarter-width xresnet18 on three tenths of Imagenette at 48 px. The placements are 25 single
modules (five types at five sites), 20 pairs of them, and the plain model, with `SEEDS`. Each is trained from
scratch for seven epochs, and branched from the plain training of its seed after three, five and six epochs
(`continue_training`). Branches of a seed have the same shared partial training, order and
crops. Replicates are plain models with weights that differ by 1e-6.

    python benchmarks/nette.py --hours 2

The script continues the files and writes them every few minutes. A row is one training: its placement, seed,
the epoch `at` which it left the shared partial training (0: from scratch), and for each validation image the
loss in steps of 1/16 up to 16 and whether the answer was right. The whole table takes about two hours on two
cores with AVX-512, and up to 12 on older ones. The archive must be in the folder AUTOML_TEST_DATA or in
../shared/data.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from attention import Spec
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.task import Task, open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.training import checkpoint
from automl.training.loop import TrainingState, fit, start
from backbones import call
from backbones.take_over import load_with_projections
from search import choices
from search.config import Model, TrialConfig

HERE = Path(__file__).parent
DATA = Path(os.environ.get("AUTOML_TEST_DATA", HERE.parents[1] / "shared" / "data"))
SITES = ("stage1.block2", "stage2.block1", "stage2.block2", "stage3.block2", "stage4.block2")
TYPES = tuple(name for name in choices.TYPES if name != "conv1x1")
PAIRS = 20
EPOCHS, BRANCHES = 7, (3, 5, 6)  # whole trainings, and when branches leave the shared partial training
SEEDS = {0: 6, 3: 5, 5: 5, 6: 9}  # at each; branches of one epoch cost least
PLACEMENTS_PER_REPLICATE, PERTURB = 2, 1e-6
STEPS, MOST = 16, 255  # of a loss: steps per nat, and the largest number of steps
SAVE = 300  # seconds between two writings


@dataclass(frozen=True)
class Work:
    """One training. name: the placement, `plain` or `replicate N`. at: 0 if it is from scratch."""

    name: str
    seed: int
    at: int

    @property
    def placement(self) -> dict[str, Spec]:
        if "@" not in self.name:
            return {}
        modules = (module.split("@") for module in self.name.split(" + "))
        return {site: Spec(kind) for kind, site in modules}


def singles(sites: Sequence[str] = SITES) -> list[str]:
    return [f"{kind}@{site}" for site in sites for kind in TYPES]


def pairs() -> list[str]:
    """Return some of all pairs of modules at two sites, always the same."""
    every = [
        f"{first} + {second}"
        for first, second in itertools.combinations(singles(), 2)
        if first.partition("@")[2] != second.partition("@")[2]
    ]
    return sorted(random.Random(0).sample(every, PAIRS))


def everything() -> Iterator[Work]:
    """Yield all trainings: complete tables of few seeds before more seeds."""
    for seed in range(max(SEEDS.values())):
        ats = [at for at in (0, *BRANCHES) if seed < SEEDS[at]]
        for at in ats:
            for name in ["plain", *singles(), *pairs()]:
                yield Work(name, seed, at)
        for i in range(PLACEMENTS_PER_REPLICATE):
            for at in ats:
                if at:
                    yield Work(f"replicate {i + 1}", seed, at)


def config(work: Work) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="nette", path=str(DATA / "imagenette2-128.tgz"), size=48, subset=0.3),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=work.placement),
        training=ImageTraining(epochs=EPOCHS, batch_size=64, learning_rate=3e-3, schedule="flat-cosine"),
        seed=work.seed,
    )


def open_work(work: Work) -> Task:
    torch.set_num_threads(1)
    return open_task(config(work), Runtime(device=torch.device("cpu"), precision="fp32"))


def answers(task: Task, state: TrainingState) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each validation image, in steps, and whether the answer was right."""
    whole = open_task(task.config.change(data={"subset": 1.0}), task.runtime)
    losses, hits = [], []
    model = state.scored.eval()
    with torch.inference_mode():
        for batch in whole.parts("validation"):
            logits = call(model, batch.inputs).float()
            losses.append(F.cross_entropy(logits, batch.targets, reduction="none"))
            hits.append(logits.argmax(1) == batch.targets)
    steps = (torch.cat(losses) * STEPS).round().clamp(0, MOST)
    return steps.numpy().astype(np.uint8), torch.cat(hits).numpy()


def train_shared(seed: int, folder: Path) -> None:
    """Train the plain model of a seed and keep it at each of BRANCHES."""
    task = open_work(Work("plain", seed, 0))
    state = start(task)
    for record in fit(task, state):
        if record["epoch"] in BRANCHES:
            storage = Storage(str(folder / f"{seed}-{record['epoch']}"))
            checkpoint.save(storage, task.config, state, [])
        if record["epoch"] == max(BRANCHES):
            return


def continue_training(task: Task, stem: TrainingState, *, perturb: float, seed: int) -> TrainingState:
    """Start a training of the task's model from the epoch, weights and optimiser state of a plain one.

    `perturb` is the relative size of normal noise on the copied weights, and `seed` that of the noise.
    """
    state = start(task)
    load_with_projections(state.model, stem.model, source="of the shared partial training")
    known = dict(stem.model.named_parameters())
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in state.model.named_parameters():
            if name in known:
                state.optimizer.state[parameter] = dict(stem.optimizer.state.get(known[name], {}))
                parameter.mul_(1 + perturb * torch.randn(parameter.shape, generator=noise))
    state.epoch = stem.epoch
    return state


def train(arguments: tuple[Work, Path]) -> dict[str, Any]:
    """Train and return the row."""
    work, folder = arguments
    task = open_work(work)
    if work.at == 0:
        state = start(task)
    else:
        plain = open_work(Work("plain", work.seed, work.at))
        stem = start(plain)
        checkpoint.restore(
            stem, checkpoint.read(Storage(str(folder / f"{work.seed}-{work.at}")), torch.device("cpu"))
        )
        replicate = work.name.startswith("replicate")
        state = continue_training(
            task, stem, perturb=PERTURB if replicate else 0.0, seed=crc32(work.name.encode())
        )
    for _ in fit(task, state):
        pass
    losses, hits = answers(task, state)
    return {
        "placement": work.name,
        "seed": work.seed,
        "at": work.at,
        "losses": losses.tobytes(),
        "hits": np.packbits(hits).tobytes(),
    }


def file_of(at: int) -> Path:
    return HERE / "data" / f"nette-{at}.parquet"


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return [
        row for at in (0, *BRANCHES) if file_of(at).exists() for row in pq.read_table(file_of(at)).to_pylist()
    ]


def write(rows: list[dict[str, Any]]) -> None:
    for at in (0, *BRANCHES):
        some = sorted((r for r in rows if r["at"] == at), key=lambda r: (r["seed"], r["placement"]))
        if some:
            new = file_of(at).with_suffix(".new")
            table = pa.Table.from_pylist(some)
            pq.write_table(table, new, compression="zstd", compression_level=19, use_dictionary=["placement"])
            new.replace(file_of(at))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="start no training after so many hours")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    rows = read()
    done = {Work(row["placement"], row["seed"], row["at"]) for row in rows}
    todo = [work for work in everything() if work not in done]
    print(f"{len(done)} trainings are recorded, {len(todo)} are not", flush=True)
    if not todo:
        return
    end = time.monotonic() + 3600 * options.hours
    written = start_time = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(options.processes) as pool,
    ):
        seeds = sorted({work.seed for work in todo})
        shared_trainings = {seeds[0]: pool.apply_async(train_shared, (seeds[0], Path(folder)))}
        for seed, following in zip(seeds, [*seeds[1:], None], strict=True):
            todo_of_seed = [work for work in todo if work.seed == seed]
            shared_trainings[seed].get()
            if following is not None:  # the branches of this seed may leave a process idle
                shared_trainings[following] = pool.apply_async(train_shared, (following, Path(folder)))
            for i, row in enumerate(
                pool.imap_unordered(train, [(work, Path(folder)) for work in todo_of_seed]), 1
            ):
                rows.append(row)
                now = time.monotonic()
                if i == len(todo_of_seed) or now - written > SAVE or now > end:
                    write(rows)
                    written = now
                    print(
                        f"seed {seed}: {i} of {len(todo_of_seed)}, {(now - start_time) / 60:.0f} min",
                        flush=True,
                    )
                if now > end:
                    pool.terminate()
                    return


if __name__ == "__main__":
    main()
