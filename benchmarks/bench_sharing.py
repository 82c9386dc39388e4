"""Measure time ratios and steps a second of trainings that share a GPU with 0, 3 and 7 busy neighbours.

A/A: two equal models are timed as a trial and its baseline are, so that their ratio is 1. Ratios that a
search accepts must lie within 3 %; the exit code is 1 if one does not. The others are counted as refused: a
search estimates them from counted work. First it prints the fraction of a GPU that `--gpus-per-trial auto`
would choose for each case.

    python benchmarks/bench_sharing.py    # at most a minute on an H100

Without a GPU it is a smoke test, and writes no file.
"""

import multiprocessing as mp
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Semaphore
from pathlib import Path

from harness import device_name, write_values
from pictures import make_pictures

from automl.config.device import find_device, is_gpu, synchronise
from automl.config.nouns import Question
from automl.config.runtime import Runtime, runtime_for
from automl.costs.gpu_fraction import choose_fraction, measure_gpu_use
from automl.costs.time_ratio import Epoch, Timings, measure_time_ratio
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from search.config import Model, TrialConfig

NEIGHBOURS, REPEATS, SECONDS = (0, 3, 7), 3, 1.0  # on a GPU; seconds of counting steps
WITHIN = 0.03
BURST = 10  # steps of a neighbour between two looks at what it should do


@dataclass(frozen=True, kw_only=True)
class Row:
    """Time ratios of equal models, and steps a second of all trainings together."""

    case: str
    neighbours: int
    ratios: list[float]
    refused: int
    steps_per_second: float
    speed_up: float


def cases(folder: str, gpu: bool) -> dict[str, TrialConfig]:
    recall = Question(space="recall").open().baseline
    size = 64 if gpu else 32
    images = TrialConfig(
        data=ImageData(source="folder", path=folder, size=size),
        model=Model(backbone="xresnet18", options={} if gpu else {"width": 0.25}),
        training=ImageTraining(epochs=5, batch_size=64 if gpu else 16),
    )
    return {"gpt of 2 x 32, recall": recall, f"xresnet18 at {size} px": images}


def open_runtime(gpu: bool, at_once: int) -> Runtime:
    return runtime_for(1, 1 / at_once if gpu else 0)


def train_when_asked(
    index: int,
    configs: list[TrialConfig],
    gpu: bool,
    at_once: int,
    busy: "Synchronized[int]",
    case: "Synchronized[int]",
    steps: "Synchronized[int]",
    ready: Semaphore,
) -> None:
    """Train while `index` is below `busy`, which is negative at the end."""
    runtime, parent = open_runtime(gpu, at_once), os.getppid()
    epochs = [Epoch(open_task(config, runtime)) for config in configs]
    synchronise(runtime.device)
    ready.release()
    while busy.value >= 0 and os.getppid() == parent:
        if index >= busy.value:
            time.sleep(0.005)
            continue
        for _ in range(BURST):
            epochs[case.value].step()
        synchronise(runtime.device)
        with steps.get_lock():
            steps.value += BURST


def count_steps(epoch: Epoch, others: "Synchronized[int]", seconds: float) -> float:
    """Return the steps a second of this process and its neighbours."""
    before, own, start_time = others.value, 0, time.perf_counter()
    while time.perf_counter() - start_time < seconds:
        epoch.step()
        own += 1
    synchronise(epoch.runtime.device)
    return (own + others.value - before) / (time.perf_counter() - start_time)


def measure_rows(folder: str, gpu: bool, neighbours: tuple[int, ...], repeats: int) -> list[Row]:
    context = mp.get_context("spawn")
    at_once = 1 + max(neighbours)
    named = cases(folder, gpu)
    configs = list(named.values())
    runtime = open_runtime(gpu, at_once)
    tasks = [open_task(config, runtime) for config in configs]  # fills the cache of the data
    for name, config in named.items() if gpu else ():
        use = measure_gpu_use(config, runtime)
        chosen = choose_fraction(use, gpus=1, cores=os.cpu_count() or 1)
        print(f"{name}: {chosen}", flush=True)
    busy, case, steps = (context.Value("i", 0) for _ in range(3))
    ready = context.Semaphore(0)
    arguments = (configs, gpu, at_once, busy, case, steps, ready)
    processes = [
        context.Process(target=train_when_asked, args=(index, *arguments), daemon=True)
        for index in range(max(neighbours))
    ]
    for process in processes:
        process.start()
    for _ in processes:
        if not ready.acquire(timeout=120):
            sys.exit("a neighbour did not start within two minutes")
    rows: list[Row] = []
    for number, (name, task) in enumerate(zip(named, tasks, strict=True)):
        case.value = number
        epoch = Epoch(task)
        alone = 0.0
        for count in neighbours:
            busy.value = count
            time.sleep(0.2)
            rate = count_steps(epoch, steps, SECONDS)
            alone = alone or rate
            measured = [measure_time_ratio(task, task, Timings()) for _ in range(repeats)]
            row = Row(
                case=name,
                neighbours=count,
                ratios=[ratio.ratio for ratio in measured if not ratio.imprecise],
                refused=sum(ratio.imprecise for ratio in measured),
                steps_per_second=rate,
                speed_up=rate / alone,
            )
            rows.append(row)
            ratios = ", ".join(f"{ratio:.3f}" for ratio in row.ratios) or "none"
            print(
                f"{name:24} {count} neighbours: A/A {ratios}, {row.refused} refused; {rate:.0f} steps/s, "
                f"{row.speed_up:.2f} times one training",
                flush=True,
            )
    busy.value = -1
    for process in processes:
        process.join(10)
        if process.exitcode:
            sys.exit(f"a neighbour ended with exit code {process.exitcode}")
    return rows


def main() -> None:
    start_time = time.perf_counter()
    gpu = is_gpu(find_device())
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["AUTOML_CACHE"] = f"{scratch}/cache"
        folder = str(make_pictures(Path(scratch) / "pictures", train=640 if gpu else 80, test=40, side=80))
        rows = measure_rows(folder, gpu, NEIGHBOURS if gpu else (0, 1), REPEATS if gpu else 1)
    print(f"{device_name()}: {time.perf_counter() - start_time:.0f} s")
    if gpu:
        accepted, refused = sum(len(row.ratios) for row in rows), sum(row.refused for row in rows)
        totals = {"accepted": accepted, "measured": accepted + refused}
        write_values("sharing", {"totals": totals, "rows": [asdict(row) for row in rows]})
    if apart := [ratio for row in rows for ratio in row.ratios if abs(ratio - 1) > WITHIN]:
        sys.exit(f"{len(apart)} accepted A/A ratios are more than {WITHIN:.0%} from 1: {apart}")


if __name__ == "__main__":
    main()
