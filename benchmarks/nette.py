"""Placements on real images: a recorded table, and the script that records it.

A quarter-width xresnet18 on three tenths of Imagenette at 48 px: 25 single modules (five types at five
sites), 20 pairs of them and the plain model, with `SEEDS`, each trained from scratch for seven epochs, and
branched from the plain training of that seed after three, five and six of them
(`automl.training.continuation`). Branches of a seed share shared partial training, order and crops;
replicates are plain with weights that differ by 1e-6.

    python benchmarks/nette.py --hours 2

It goes on from what `data/nette-*.parquet` hold, and writes them again every few minutes. A row is one
training: its placement, seed, the epoch `at` which it left the shared partial training (0: from scratch),
and of each validation image the loss in steps of 1/16 up to 16 and whether it was right. All of it is about
two hours on two cores with AVX-512, and up to 12 on older ones. Needs the archive that AUTOML_TEST_DATA or
../shared/data holds.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from attention import ATTENTIONS, Spec
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.tasks import Task, open_task
from automl.training import checkpoint
from automl.training.continuation import continue_training
from automl.training.loop import TrainingState, fit, start
from backbones import call
from search.config import ImageData, ImageTraining, Model, TrialConfig

HERE = Path(__file__).parent
DATA = Path(os.environ.get("AUTOML_TEST_DATA", HERE.parents[1] / "shared" / "data"))
SITES = ("stage1.block2", "stage2.block1", "stage2.block2", "stage3.block2", "stage4.block2")
TYPES = tuple(name for name in ATTENTIONS if name != "conv1x1")
PAIRS = 20
EPOCHS, BRANCHES = 7, (3, 5, 6)  # whole trainings, and when branches leave the shared partial training
SEEDS = {0: 6, 3: 5, 5: 5, 6: 9}  # at each; branches of one epoch cost least
PLACEMENTS_PER_REPLICATE, PERTURB = 2, 1e-6
STEPS, MOST = 16, 255  # of a loss: parts of a nat, and the largest that is kept
SAVE = 300  # seconds between two writings


@dataclass(frozen=True)
class Work:
    """One training. name: of the placement, or `plain` or `replicate N`. at: 0 for one from scratch."""

    name: str
    seed: int
    at: int

    @property
    def placement(self) -> dict[str, Spec]:
        if "@" not in self.name:
            return {}
        parts = (part.split("@") for part in self.name.split(" + "))
        return {site: Spec(kind) for kind, site in parts}


def singles() -> list[str]:
    return [f"{kind}@{site}" for site in SITES for kind in TYPES]


def pairs() -> list[str]:
    """Some of all pairs of two sites, always the same."""
    every = [
        f"{one} + {other}"
        for one, other in itertools.combinations(singles(), 2)
        if one.partition("@")[2] != other.partition("@")[2]
    ]
    return sorted(random.Random(0).sample(every, PAIRS))


def everything() -> Iterator[Work]:
    """In the order in which they are of use: whole tables of few seeds before more seeds."""
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


def opened(work: Work) -> Task:
    torch.set_num_threads(1)
    return open_task(config(work), Runtime(device=torch.device("cpu"), precision="fp32"))


def answers(task: Task, state: TrainingState) -> tuple[np.ndarray, np.ndarray]:
    """The loss of each validation image, in steps, and whether it was right."""
    whole = open_task(task.config.change(data={"subset": 1.0}), task.runtime)
    losses, hits = [], []
    model = state.scored.eval()
    with torch.inference_mode():
        for part in whole.parts("validation"):
            logits = call(model, part.inputs).float()
            losses.append(F.cross_entropy(logits, part.targets, reduction="none"))
            hits.append(logits.argmax(1) == part.targets)
    steps = (torch.cat(losses) * STEPS).round().clamp(0, MOST)
    return steps.numpy().astype(np.uint8), torch.cat(hits).numpy()


def shared_training(seed: int, folder: Path) -> None:
    """Trains the plain model of a seed and keeps it at each of BRANCHES."""
    task = opened(Work("plain", seed, 0))
    state = start(task)
    for record in fit(task, state):
        if record["epoch"] in BRANCHES:
            place = Storage(str(folder / f"{seed}-{record['epoch']}"))
            checkpoint.save(place, task.config, state, [])
        if record["epoch"] == max(BRANCHES):
            return


def train(given: tuple[Work, Path]) -> dict[str, Any]:
    """The row of one training."""
    work, folder = given
    task = opened(work)
    if work.at == 0:
        state = start(task)
    else:
        plain = opened(Work("plain", work.seed, work.at))
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
    """The rows so far."""
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
    parser.add_argument("--hours", type=float, default=24.0, help="no training is begun after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    rows = read()
    done = {Work(row["placement"], row["seed"], row["at"]) for row in rows}
    todo = [work for work in everything() if work not in done]
    print(f"{len(done)} trainings are recorded, {len(todo)} are not", flush=True)
    if not todo:
        return
    end = time.monotonic() + 3600 * asked.hours
    written = begun = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(asked.processes) as pool,
    ):
        seeds = sorted({work.seed for work in todo})
        shared_trainings = {seeds[0]: pool.apply_async(shared_training, (seeds[0], Path(folder)))}
        for seed, following in zip(seeds, [*seeds[1:], None], strict=True):
            mine = [work for work in todo if work.seed == seed]
            shared_trainings[seed].get()
            if following is not None:  # while this one's branches leave a process idle
                shared_trainings[following] = pool.apply_async(shared_training, (following, Path(folder)))
            for i, row in enumerate(pool.imap_unordered(train, [(work, Path(folder)) for work in mine]), 1):
                rows.append(row)
                now = time.monotonic()
                if i == len(mine) or now - written > SAVE or now > end:
                    write(rows)
                    written = now
                    print(f"seed {seed}: {i} of {len(mine)}, {(now - begun) / 60:.0f} min", flush=True)
                if now > end:
                    pool.terminate()
                    return


if __name__ == "__main__":
    main()
