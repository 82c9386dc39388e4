"""Time calls interleaved with a peer's, and write result files, for all benchmarks."""

import ctypes
import gc
import json
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from automl.config import device as device_module
from automl.config.device import find_device, is_gpu, synchronise
from automl.costs.time_ratio import BELIEVED, PRECISE, interval
from automl.training.clock import time_in_turn

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "torchvision", "fastai", "timm", "ray", "optuna", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Result of a case. A `ratio` above 1 favours this project; `spread` is its interval."""

    case: str
    peer: str
    ours: float
    theirs: float
    unit: str
    spread: tuple[float, float]
    ratio: float

    @property
    def is_resolved(self) -> bool:
        """True if the interval is on one side of 1, or as narrow as a search accepts."""
        low, high = self.spread
        return not low <= 1 <= high or max(high / self.ratio, self.ratio / low) - 1 <= BELIEVED


def compare(
    case: str,
    peer: str,
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    unit: str,
    rounds: int,
    higher_is_better: bool,
    limit: float = 0.0,
) -> Row:
    """Measure both in turn, `rounds` times after a round that warms up. Each call returns its measurement.

    Add as many rounds until the interval of the ratio is narrow, or `limit` seconds have passed.
    """
    start, pairs, turns = time.perf_counter(), list[tuple[float, float]](), time_in_turn([ours, theirs])
    while True:
        pairs.extend((a, b) for a, b in islice(turns, rounds))
        ratio, low, high = interval([a / b for a, b in pairs])
        if max(high / ratio, ratio / low) - 1 <= PRECISE or time.perf_counter() - start >= limit:
            break
    return summarise(case, peer, pairs, unit=unit, higher_is_better=higher_is_better)


def summarise(
    case: str, peer: str, pairs: Sequence[tuple[float, float]], *, unit: str, higher_is_better: bool
) -> Row:
    """Return the row of interleaved rounds, and print it. Each pair is ours and theirs."""
    ratio, low, high = interval([a / b if higher_is_better else b / a for a, b in pairs])
    row = Row(
        case=case,
        peer=peer,
        ours=statistics.median(a for a, _ in pairs),
        theirs=statistics.median(b for _, b in pairs),
        unit=unit,
        spread=(low, high),
        ratio=ratio,
    )
    show(row)
    return row


def show(row: Row) -> None:
    low, high = row.spread
    print(
        f"{row.case:44} {row.peer:28} ours {row.ours:10.4g} theirs {row.theirs:10.4g} {row.unit:12} "
        f"ratio {row.ratio:6.2f} ({low:.2f} to {high:.2f})"
        f"{'' if row.is_resolved else ': not resolved, the machine is too busy'}",
        flush=True,
    )


def seconds(call: Callable[[], object], device: torch.device, repeat: int = 1) -> float:
    """Return the seconds of one call, the mean over `repeat` calls."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(repeat):
        call()
    synchronise(device)
    return (time.perf_counter() - start) / repeat


def core_time(device: torch.device) -> float:
    """Return the processor time [s] of this process and its workers. On a GPU, the time by the clock."""
    synchronise(device)
    return time.perf_counter() if is_gpu(device) else _processor_time()


def _processor_time() -> float:
    """Return the processor time [s] of this process and of its children, ended or running (Linux only)."""
    total = sum(os.times()[:4])
    for file in Path("/proc/self/task").glob("*/children"):
        for child in file.read_text().split():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def milliseconds(call: Callable[[], object], device: torch.device, repeat: int = 1) -> float:
    """Return the milliseconds of one call, as `seconds` does."""
    return 1e3 * seconds(call, device, repeat)


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """Return the memory that a call takes at its peak [MiB]. On a CPU, resident memory (Linux only)."""
    gc.collect()
    if is_gpu(device):
        synchronise(device)
        before = device_module.start_peak_memory(device)
        call()
        synchronise(device)
        return (device_module.peak_memory(device) - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # so that this call cannot reuse memory that was freed before
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    resident = _resident("VmRSS")
    call()
    return max(_resident("VmHWM") - resident, 0.1) / 2**10


def _resident(field: str) -> float:
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return float(match[1])


def device_name() -> str:
    device = find_device()
    name = device_module.device_name(device)
    return name if is_gpu(device) else f"{name}, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    packages = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return packages


def file_of(name: str) -> Path:
    """Return the file of a benchmark's results on this device."""
    slug = re.sub(r"\W+", "-", device_name().lower()) if is_gpu(find_device()) else "cpu"
    return RESULTS / f"{name}-{slug}.json"


def read_rows(name: str) -> list[Row]:
    """Read the rows that `write` wrote before."""
    file = file_of(name)
    return [Row(**row) for row in json.loads(file.read_text())["rows"]] if file.exists() else []


def write(name: str, rows: list[Row]) -> None:
    """Write rows to `results/<name>-<cpu or the GPU's name>.json`."""
    write_values(name, {"rows": [asdict(row) for row in rows]})


def write_values(name: str, values: dict[str, Any]) -> None:
    """Write other results to the same file. `values` has JSON's types."""
    file = file_of(name)
    content = {
        "name": name,
        "device": device_name(),
        "versions": versions(),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        **values,
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {file}")
