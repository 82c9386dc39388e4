"""Compare trials per hour on one GPU: 1, 2, 4 and 8 trials at a time with one after the other.

Each trial is a process, as in a search. It trains xresnet18 with SSA at 64 px for some epochs with its
fraction of the device's memory. Start-up is not timed, since reused actors start once.
"""

import multiprocessing as mp
import os
import sys
import tempfile
import time
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path

import torch
from harness import Row, show, write
from pictures import make_pictures

from attention import Spec
from automl.config.device import find_device, is_gpu
from automl.config.runtime import Runtime
from automl.tasks import open_task
from automl.training.loop import fit, start
from search.config import ImageData, ImageTraining, Model, TrialConfig

TRIALS = 8
IMAGES = 4096


def run_trials(
    folder: str, device: str, epochs: int, fraction: float, count: int, ready: Semaphore, go: Event
) -> None:
    config = TrialConfig(
        data=ImageData(source="folder", path=folder, size=64),
        model=Model(backbone="xresnet18", placement={"stage1.block2.branch": Spec("ssa")}),
        training=ImageTraining(epochs=epochs),
    )
    runtime = Runtime(device=torch.device(device), memory_fraction=fraction)
    task = open_task(config, runtime)
    next(fit(task, start(task)))
    ready.release()
    go.wait()
    for seed in range(count):
        task = open_task(config.change(seed=seed), runtime)
        for _ in fit(task, start(task)):
            pass


def measure_rate(folder: str, device: str, epochs: int, at_once: int) -> float:
    """Return trials per hour with `at_once` processes that divide `TRIALS` trials among them."""
    context = mp.get_context("spawn")
    ready, go = context.Semaphore(0), context.Event()
    arguments = (folder, device, epochs, 1 / at_once, TRIALS // at_once, ready, go)
    processes = [context.Process(target=run_trials, args=arguments) for _ in range(at_once)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start_time = time.perf_counter()
    go.set()
    for process in processes:
        process.join()
        if process.exitcode:
            sys.exit(f"a trial of {at_once} at a time ended with exit code {process.exitcode}")
    return 3600 * TRIALS / (time.perf_counter() - start_time)


def main() -> None:
    device = find_device()
    if not is_gpu(device):
        sys.exit("this benchmark needs a GPU; this machine has none")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = str(make_pictures(Path(scratch) / "pictures", train=IMAGES * 5 // 4, test=40))
        alone = [measure_rate(folder, str(device), 5, 1) for _ in range(2)]
        rows = []
        for at_once in (1, 2, 4, 8):
            packed = [measure_rate(folder, str(device), 5, at_once) for _ in range(2)]
            single, many = sum(alone) / 2, sum(packed) / 2
            rows.append(
                Row(
                    case=f"{at_once} trials at a time",
                    peer="one after the other",
                    ours=many,
                    theirs=single,
                    unit="trials/h",
                    spread=(min(packed) / max(alone), max(packed) / min(alone)),
                    ratio=many / single,
                )
            )
            show(rows[-1])
    write("packing", rows)


if __name__ == "__main__":
    main()
