"""Record trainings in a Parquet file, which an interrupted recording continues."""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

SAVE = 60  # seconds between two writings

Row = dict[str, Any]
Work = TypeVar("Work")


def read(file: Path) -> list[Row]:
    """Return the rows so far."""
    return pq.read_table(file).to_pylist() if file.exists() else []


def write(file: Path, rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Write rows, sorted by the columns `keys`."""
    new = file.with_suffix(".new")
    rows = sorted(rows, key=lambda row: [row[key] for key in keys])
    pq.write_table(pa.Table.from_pylist(rows), new, compression="zstd")
    new.replace(file)


def record(
    description: str | None,
    file: Path,
    todo: Sequence[Work],
    train: Callable[[Work], Row],
    keys: Sequence[str],
) -> None:
    """Train what the file lacks, in several processes, until it is complete or the time is used up.

    Args:
        description: The help of the command.
        file: The file.
        todo: All trainings, each as a tuple of the values of `keys`.
        train: Trains in a process of its own and returns the row, which has `keys`.
        keys: The columns that identify a training.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="start no training after so many hours")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    rows = read(file)
    done = {tuple(row[key] for key in keys) for row in rows}
    left = [work for work in todo if work not in done]
    print(f"{len(done)} trainings are recorded, {len(left)} are not", flush=True)
    began = written = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(train, left):
            rows.append(row)
            now = time.monotonic()
            if now - written > SAVE:
                write(file, rows, keys)
                written = now
                print(f"{len(rows)} trainings, {(now - began) / 60:.0f} min", flush=True)
            if now - began > 3600 * options.hours:
                pool.terminate()
                break
    write(file, rows, keys)
