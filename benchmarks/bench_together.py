"""Seeds of one architecture in one vectorised step, against the same seeds one after the other.

Epochs, with validation, of xresnet18 at a quarter of its width and at all of it, with SSA, of 2 to 16 seeds.
The peer takes steps as a search does there: as CUDA graphs where these pay. On a CPU one case is enough.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from harness import Row, compare, find_device, seconds, write
from pictures import make_pictures

from attention import Spec
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.training.loop import fit, start
from automl.training.together import fit_together
from search.config import ImageData, ImageTraining, Model, TrialConfig

DEVICE = find_device()
ON_GPU = DEVICE.type == "cuda"
IMAGES = 4096 if ON_GPU else 256
EPOCHS = 100  # more than are trained: each measurement is one of them
ROUNDS = 5 if ON_GPU else 3
CASES = [(width, seeds) for width in (0.25, 1.0) for seeds in (2, 4, 8, 16)] if ON_GPU else [(0.25, 4)]


def measure(folder: str, width: float, seeds: int) -> Row:
    config = TrialConfig(
        data=ImageData(source="folder", path=folder, size=64),
        model=Model(
            backbone="xresnet18",
            options={"width": width},
            placement={"stage1.block2.branch": Spec("ssa")},
        ),
        training=ImageTraining(epochs=EPOCHS),
    )
    tasks = [open_task(config.change(seed=seed), Runtime(device=DEVICE)) for seed in range(seeds)]
    together = fit_together(tasks, [start(task) for task in tasks])
    alone = [fit(task, start(task)) for task in tasks]

    def one_after_the_other() -> None:
        for training in alone:
            next(training)

    images = seeds * tasks[0].steps() * config.training.batch_size

    def rate(epoch: Callable[[], object]) -> float:
        return images / seconds(epoch, DEVICE)

    ours, theirs = partial(rate, partial(next, together)), partial(rate, one_after_the_other)
    ours(), theirs()  # warms up, and captures graphs
    return compare(
        f"{seeds} seeds of xresnet18, width {width:g}",
        "one after the other",
        ours,
        theirs,
        unit="images/s",
        rounds=ROUNDS,
        higher_is_better=True,
    )


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = str(make_pictures(Path(scratch) / "pictures", train=IMAGES * 5 // 4, test=40))
        write("together", [measure(folder, width, seeds) for width, seeds in CASES])


if __name__ == "__main__":
    main()
