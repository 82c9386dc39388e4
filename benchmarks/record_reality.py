"""Record which published attention modules beat the plain model at equal time: `data/reality.parquet`.

Rows and columns are those of the study `reality-check`: modules of this package and of timm at the sites of
their papers, and two free controls, on look-ups by colour, on some 570 images of Imagenette, and on two
tenths of it. The learning rate of a column is the best of `RATES` for the plain model on validation images. A
module has as many steps as fit into the plain model's time, by steps of both timed in turn.

    python benchmarks/record_reality.py --hours 1

A row of the file is one training, scored once on the test split. All modules of a column have the same seeds
as the plain model, `--least` or more and at most `MOST`. Past the least, a module gets no further seed once a
gain is out of sight (`is_given_up` of the study). The archive must be in the folder AUTOML_TEST_DATA or in
../shared/data.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nette
import numpy as np
import recorder
import torch

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.costs.profile import measure
from automl.task import open_task
from automl.tasks.image_classification.reality import MOST, is_given_up
from automl.tasks.image_classification.study import BLOCK, COLUMNS, ROWS, placement
from automl.tasks.image_classification.study import NOTHING as PLAIN
from automl.training.loop import evaluate, fit, plan_course, start
from search.config import TrialConfig

FILE = Path(__file__).parent / "data" / "reality.parquet"
KEYS = ("column", "module", "seed")
RATES = (3e-3, 6e-3, 1.2e-2)
TUNING = 1000  # seed of the trainings that choose the learning rate


def record_name(module: str) -> str:
    """Return the name of a row in the file."""
    return "one_block.py:Block" if module == BLOCK else module


def plain_config(column: str, rate: float) -> TrialConfig:
    """Return the configuration of the plain model of a column. `rate` is the learning rate."""
    config = COLUMNS[column].change(training={"learning_rate": rate})
    archive = str(nette.DATA / "imagenette2-128.tgz")
    return config.change(data={"path": archive}) if config.data.source == "nette" else config


def train(work: tuple[str, str, int, float]) -> dict[str, Any]:
    """Train and return the row. `rate` is the learning rate."""
    column, module, seed, rate = work
    torch.set_num_threads(1)
    runtime = Runtime(device=torch.device("cpu"), precision="fp32")
    plain = plain_config(column, rate)
    began = time.process_time()
    row: dict[str, Any] = {"column": column, "module": record_name(module), "seed": seed, "rate": rate}
    try:
        sites = {} if module == PLAIN else placement(plain, module, ROWS[module])
        config = plain.change(model={"placement": sites})
        profile = measure(config, plain, runtime)
        equal = (1.0, 0.0) if module == PLAIN else (profile.time_ratio, profile.validation)
        task = open_task(config.change(seed=seed), runtime)
        state = start(task)
        *_, last = fit(task, state, *equal)
        scores = evaluate(task, state.scored, "test", task.evaluator("test"))
        row |= {"test": float(scores["accuracy"]), "validation": float(last["accuracy"]), "why": ""}
        row |= {"ratio": equal[0], "steps": plan_course(task, *equal).total}
    except (InputError, RuntimeError, AssertionError) as error:
        nothing = float("nan")
        row |= {
            "test": nothing,
            "validation": nothing,
            "why": f"{type(error).__name__} {error}"[:200],
            "ratio": nothing,
            "steps": 0,
        }
    return {**row, "processor_seconds": time.process_time() - began}


def read() -> list[dict[str, Any]]:
    """Return the rows so far."""
    return recorder.read(FILE)


def scores_of(rows: Sequence[Mapping[str, Any]], column: str, module: str) -> dict[int, float]:
    """Return the test accuracy of each seed in points."""
    return {
        row["seed"]: 100 * row["test"]
        for row in rows
        if (row["column"], row["module"]) == (column, record_name(module)) and row["seed"] < TUNING
    }


def differences(rows: Sequence[Mapping[str, Any]], column: str, module: str) -> np.ndarray:
    """Return the differences from the plain model in points, by seed."""
    plain, own = scores_of(rows, column, PLAIN), scores_of(rows, column, module)
    return np.array([own[seed] - plain[seed] for seed in sorted(own.keys() & plain.keys())])


def left(
    rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float], least: int
) -> Iterator[tuple[str, str, int, float]]:
    """Yield the next trainings: those of the first seed that a module still needs and lacks."""
    for seed in range(MOST):
        todo = []
        for column, rate in rates.items():
            for module in (PLAIN, *ROWS):
                own = scores_of(rows, column, module)
                d = differences(rows, column, module)
                lost = np.isnan(d).any() or (len(d) >= least and is_given_up(d))
                if seed not in own and not (module != PLAIN and lost):
                    todo.append((column, module, seed, rate))
        if todo:
            yield from todo
            return


def _tuning() -> list[tuple[str, str, int, float]]:
    return [(column, PLAIN, TUNING + i, rate) for column in COLUMNS for i, rate in enumerate(RATES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="start no training after so many hours")
    parser.add_argument("--least", type=int, default=10, help="seeds of every module; 10 can show one of 25")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    end = time.monotonic() + 3600 * options.hours
    rows = read()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        while True:
            tuned = [row for row in rows if row["seed"] >= TUNING]
            missing = [
                w for w in _tuning() if not any((r["column"], r["seed"]) == (w[0], w[2]) for r in tuned)
            ]
            rates = {
                column: max((r for r in tuned if r["column"] == column), key=lambda r: r["validation"])[
                    "rate"
                ]
                for column in (COLUMNS if not missing else ())
            }
            todo = missing or list(left(rows, rates, options.least))
            if not todo:
                return
            for number, row in enumerate(pool.imap_unordered(train, todo), start=1):
                rows.append(row)
                print(f"{number} of {len(todo)}: {row}", flush=True)
                if number % 10 == 0 or number == len(todo) or time.monotonic() > end:
                    recorder.write(FILE, rows, KEYS)
                if time.monotonic() > end:
                    pool.terminate()
                    return


if __name__ == "__main__":
    main()
