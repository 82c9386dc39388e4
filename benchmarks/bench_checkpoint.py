"""Measure what a checkpoint within an epoch costs a training: by the clock, and in processor time.

A training with a checkpoint every `OFTEN` seconds and one with none are run in turn, epoch by epoch. The
default period costs the measured seconds of one checkpoint, divided by the period. The copies, the thread
that writes, and what its work slows down are all in it.

    python benchmarks/bench_checkpoint.py    # ten minutes for the smaller model on one core
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from harness import core_time, write_values
from scipy import stats

from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.storage.storage import Storage
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.training import checkpoint
from automl.training.loop import fit, start
from search.config import Model, TrialConfig
from search.record import CHECKPOINT_FILE

OFTEN, NEVER, DEFAULT = 2.0, 1e9, checkpoint.PERIOD  # seconds between two checkpoints
ROUNDS = 6
MODELS = {
    "xresnet18, 64 px": (Model(backbone="xresnet18"), 64),
    "torchvision's resnet50, 64 px": (Model(backbone="torchvision:resnet50"), 64),
}


def train(model: Model, size: int, period: float, folder: Path) -> Iterator[tuple[float, float, int]]:
    """Yield the seconds of each epoch by the clock and of processors, and its number of checkpoints."""
    data = ImageData(source="digits", size=size, subset=0.5)
    training = ImageTraining(epochs=10_000, batch_size=8)
    config = TrialConfig(data=data, model=model, training=training)
    runtime = Runtime(device=find_device(), precision="fp32")
    task, storage, kept = open_task(config, runtime), Storage(str(folder)), 0

    def write(content: dict[str, Any]) -> None:
        nonlocal kept
        kept += 1
        checkpoint.write(storage, config, content, [])

    state = start(task)
    with closing(checkpoint.Keeper(runtime, state, write)) as keep:
        epochs = fit(task, state, keep=keep)
        while True:
            checkpoint.PERIOD = period  # read once, after the first steps
            kept, began, spent = 0, time.perf_counter(), core_time(runtime.device)
            next(epochs)
            keep.wait()
            yield time.perf_counter() - began, core_time(runtime.device) - spent, kept


def measure(model: Model, size: int, folder: Path) -> dict[str, Any]:
    """Return the seconds of a checkpoint as [mean, low, high], and what that is of the default period."""
    often = train(model, size, OFTEN, folder)
    never = train(model, size, NEVER, folder)
    next(never), next(often)  # warm up
    clock, processor, kept = [], [], 0
    for number in range(ROUNDS):
        first, second = (often, never) if number % 2 else (never, often)
        results = {id(first): next(first), id(second): next(second)}
        (ours, cpu, count), (theirs, cpu_of_peer, _) = results[id(often)], results[id(never)]
        kept += count
        clock.append((ours - theirs) / count)
        processor.append((cpu - cpu_of_peer) / count)
    values: dict[str, Any] = {
        "checkpoints": kept,
        "megabytes": (folder / CHECKPOINT_FILE).stat().st_size / 1e6,
    }
    for name, seconds in ("clock", clock), ("processor", processor):
        half = stats.t.ppf(0.975, ROUNDS - 1) * stats.sem(seconds)
        mean = statistics.mean(seconds)
        values[name] = [mean, mean - half, mean + half]
        values[f"{name}_percent"] = [100 * value / DEFAULT for value in values[name]]
        low, high = values[f"{name}_percent"][1:]
        print(
            f"{name:10} {mean:6.3f} s a checkpoint, {low:.2f} to {high:.2f} % of a period of {DEFAULT:.0f} s"
        )
    return values


if __name__ == "__main__":
    torch.set_num_threads(1)
    measured = {}
    for name, (model, size) in MODELS.items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            measured[name] = measure(model, size, Path(folder))
        write_values("checkpoint", {"period": DEFAULT, "models": measured})
