"""Measure the error of time ratios whose true value is known, on a quiet machine and beside busy processes.

Case A/A compares two equal models, whose ratio is 1, without the program's shortcut for them. The other cases
have a placement, twice the depth, or other batch sizes; their true ratio is the mean of many pairs on the
quiet machine. Each measurement is that of a trial: it starts without timings and ends when its interval is
narrow enough or its time is up. Each busy process trains a model in one thread.

A row has the number of accepted measurements, how many of these lie within 3 %, the worst error, how often
the interval contained the true ratio, accepted or not, and the processor time of one measurement.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from harness import RESULTS, device_name, versions

from attention import Spec
from automl.config.runtime import Runtime
from automl.costs.time_ratio import TimeRatio, Timings, measure_time_ratio
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.training.clock import processor_time
from search.config import Model, TrialConfig

RUNTIME = Runtime(device=torch.device("cpu"))
TRUTH = 12  # measurements on the quiet machine whose timings give the true ratio
BRANCH = "stage1.block2.branch"


def config(batch_size: int = 64, **model: Any) -> TrialConfig:
    return TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(**{"backbone": "xresnet18", "options": {"width": 0.25}, **model}),
        training=ImageTraining(epochs=6, batch_size=batch_size),
    )


PLAIN = config()
PLACEMENTS = {
    "ssa in stage 1": {BRANCH: Spec("ssa")},
    "ssa in stage 3": {"stage3.block1": Spec("ssa")},
    "sagan": {BRANCH: Spec("sagan")},
    "decomposed": {"stage2.block2": Spec("decomposed")},
    "multi-head": {"stage1.block1": Spec("multihead")},
    "control 1x1": {"stage2.block1": Spec("conv1x1")},
}
CASES = {
    "A/A": PLAIN,
    **{name: config(placement=placement) for name, placement in PLACEMENTS.items()},
    "twice the depth": config(backbone="xresnet34"),
    "batches of 32": config(32),
    "batches of 128": config(128),
}
LOADS = {"quiet": (0, 0), "two busy at 0": (2, 0), "three busy at 15": (3, 15)}


@dataclass(frozen=True, kw_only=True)
class Row:
    """Measurements of one case under one load. Errors are relative; None if no measurement was accepted."""

    case: str
    load: str
    truth: float
    measured: int
    accepted: int
    within: int
    worst: float | None
    worst_refused: float | None
    coverage: float
    seconds: float


def measure(case: TrialConfig, name: str, timings: Timings | None = None) -> TimeRatio:
    task, baseline = open_task(case, RUNTIME), open_task(PLAIN, RUNTIME)
    bounded = name in PLACEMENTS
    return measure_time_ratio(task, baseline, timings or Timings(), floor=float(bounded))


def measure_row(name: str, load: str, truth: float, times: int) -> Row:
    ratios, spent = [], []
    for _ in range(times):
        start = processor_time()
        ratios.append(measure(CASES[name], name))
        spent.append(processor_time() - start)
    errors = {
        is_refused: [abs(ratio.ratio / truth - 1) for ratio in ratios if ratio.imprecise is is_refused]
        for is_refused in (True, False)
    }
    row = Row(
        case=name,
        load=load,
        truth=truth,
        measured=times,
        accepted=len(errors[False]),
        within=sum(error <= 0.03 for error in errors[False]),
        worst=max(errors[False], default=None),
        worst_refused=max(errors[True], default=None),
        coverage=statistics.mean(ratio.low <= truth <= ratio.high for ratio in ratios),
        seconds=statistics.mean(spent),
    )
    accepted = f"{row.accepted} of {times} accepted, {row.within} within 3 %"
    print(
        f"{name:16} {load:16} truth {truth:.3f}: {accepted}, worst {row.worst or 0:.3f}, refused "
        f"{row.worst_refused or 0:.3f}, coverage {row.coverage:.0%}, {row.seconds:.1f} s",
        flush=True,
    )
    return row


def count_accepted(rows: list[Row]) -> dict[str, dict[str, int]]:
    """Return the numbers of measured and of accepted ratios under each load."""
    return {
        load: {
            "measured": sum(row.measured for row in rows if row.load == load),
            "accepted": sum(row.accepted for row in rows if row.load == load),
        }
        for load in dict.fromkeys(row.load for row in rows)
    }


@contextmanager
def busy(count: int, nice: int) -> Iterator[None]:
    neighbours = [subprocess.Popen([sys.executable, __file__, "busy", str(nice)]) for _ in range(count)]
    time.sleep(8 if count else 0)  # until they have imported torch
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def train_forever(nice: int) -> None:
    """Train until this process is killed."""
    os.nice(nice)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    images = torch.randn(16, 64, 32, 32)
    while True:
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    """Measure each case under each load.

    The environment variable ROUNDS is the number of measurements of A/A under load. Other cases take at most
    3.
    """
    torch.set_num_threads(1)
    rounds = int(os.environ.get("ROUNDS", "200"))
    truths = {}
    for name, case in CASES.items():
        timings = Timings()
        for _ in range(TRUTH if rounds >= TRUTH else 1):
            time_ratio = measure(case, name, timings)
        truths[name] = 1.0 if name == "A/A" else time_ratio.ratio
        print(f"{name:16} {time_ratio.ratio:.3f} ({time_ratio.low:.3f} to {time_ratio.high:.3f})", flush=True)
    rows = []
    for load, (count, nice) in LOADS.items():
        with busy(count, nice):
            for name, truth in truths.items():
                times = min(rounds, 20) if load != "two busy at 0" else rounds
                rows.append(measure_row(name, load, truth, times if name == "A/A" else min(rounds, 3)))
    file = RESULTS / "time-ratio-cpu.json"
    metadata = {"name": "time-ratio", "device": device_name(), "versions": versions()}
    results = {"totals": count_accepted(rows), "rows": [asdict(row) for row in rows]}
    file.write_text(json.dumps({**metadata, **results}, indent=1) + "\n")
    print(f"wrote {file}")


if __name__ == "__main__":
    train_forever(int(sys.argv[2])) if sys.argv[1:2] == ["busy"] else main()
