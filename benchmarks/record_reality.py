"""Record which published attention modules beat the plain model at equal time: `data/reality.parquet`.

Rows are modules of this package and of timm at the sites of their papers, and two free controls: the gated
1x1 convolution and one residual block more. Columns are tasks: two tenths of Imagenette at 48 px and some
570 of its images, both with a quarter-width xresnet18, and look-ups by colour with the model of the space
`lookup`. The learning rate of a column is the best of `RATES` for the plain model on validation images. A
module has as many steps as fit into the plain model's time, by steps of both timed in turn.

    python benchmarks/record_reality.py --hours 1

A row of the file is one training, scored once on the test split. All modules of a column have the same seeds
as the plain model, at most `SEEDS`. A module gets no further seed once a gain is out of sight
(`automl.judge.evalues.is_futile`). The archive must be in the folder AUTOML_TEST_DATA or in ../shared/data.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nette
import numpy as np
import recorder
import torch

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.costs.profile import measure
from automl.judge.evalues import is_futile
from automl.task import open_task
from automl.tasks.image_classification import ImageData, ImageTraining
from automl.tasks.image_classification.space import LOOKUP, list_sites
from automl.training.loop import evaluate, fit, plan_course, start
from search.config import Model, TrialConfig

FILE = Path(__file__).parent / "data" / "reality.parquet"
KEYS = ("column", "module", "seed")
PLAIN = "plain"
SEEDS, LEAST = 20, 3  # most seeds of a module, and seeds before a module may be given up
RATES = (3e-3, 6e-3, 1.2e-2)
TUNING = 1000  # seed of the trainings that choose the learning rate
BLOCK = f"{Path(__file__).parent / 'one_block.py'}:Block"

# Where papers have their modules. `branches`: in each residual block, before the addition. The others are the
# last site of a stage, or in its last branch.
BRANCHES, FIRST, FIRST_END, MIDDLE, LAST = "branches", "stage1 branch", "stage1", "third stage", "last stage"
ROWS: Mapping[str, str] = {
    "ssa": FIRST,
    "ssa-sym": FIRST,
    "sagan": FIRST,
    "decomposed": MIDDLE,
    "multihead": LAST,
    "timm:se": BRANCHES,
    "timm:ese": BRANCHES,
    "timm:eca": BRANCHES,
    "timm:ceca": BRANCHES,
    "timm:cbam": BRANCHES,
    "timm:lcbam": BRANCHES,
    "timm:gc": BRANCHES,
    "timm:gca": BRANCHES,
    "timm:coord": BRANCHES,
    "timm:scoord": BRANCHES,
    "timm:ela": BRANCHES,
    "timm:strip": BRANCHES,
    "timm:sk": BRANCHES,
    "timm:splat": BRANCHES,
    "timm:nl": MIDDLE,
    "timm:lambda": LAST,
    "timm:bottleneck": LAST,
    "timm:halo": FIRST,
    "conv1x1": FIRST,
    BLOCK: FIRST_END,
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """Task of the table. `config` is that of its plain model."""

    config: TrialConfig

    def placement(self, module: str) -> dict[str, str]:
        """Return the sites of a row."""
        if module == PLAIN:
            return {}
        model = self.config.model
        names = [site.name for site in list_sites(model.backbone, self.config.data.size, model.options)]
        if ROWS[module] == BRANCHES:
            return {name: module for name in names if name.endswith("branch")}
        stages = sorted({name.partition(".")[0] for name in names if name.startswith("stage")})
        stage = {MIDDLE: stages[min(2, len(stages) - 1)], LAST: stages[-1]}.get(ROWS[module], stages[0])
        branch = ROWS[module] == FIRST
        chosen = [n for n in names if n.startswith(f"{stage}.") and n.endswith("branch") == branch]
        return {chosen[-1]: module}


def _nette(subset: float, epochs: int) -> Column:
    return Column(
        config=TrialConfig(
            data=ImageData(
                source="nette", path=str(nette.DATA / "imagenette2-128.tgz"), size=48, subset=subset
            ),
            model=Model(backbone="xresnet18", options={"width": 0.25}),
            training=ImageTraining(epochs=epochs, batch_size=32, schedule="one-cycle"),
        )
    )


COLUMNS: Mapping[str, Column] = {
    "lookup": Column(config=LOOKUP),
    "few": _nette(0.06, 8),
    "nette": _nette(0.2, 4),
}


def train(work: tuple[str, str, int, float]) -> dict[str, Any]:
    """Train and return the row. `rate` is the learning rate."""
    column, module, seed, rate = work
    torch.set_num_threads(1)
    runtime = Runtime(device=torch.device("cpu"), precision="fp32")
    plain = COLUMNS[column].config.change(training={"learning_rate": rate})
    began = time.process_time()
    row: dict[str, Any] = {"column": column, "module": Path(module).name, "seed": seed, "rate": rate}
    try:
        config = plain.change(model={"placement": COLUMNS[column].placement(module)})
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
        if (row["column"], row["module"]) == (column, Path(module).name) and row["seed"] < TUNING
    }


def differences(rows: Sequence[Mapping[str, Any]], column: str, module: str) -> np.ndarray:
    """Return the differences from the plain model in points, by seed."""
    plain, own = scores_of(rows, column, PLAIN), scores_of(rows, column, module)
    return np.array([own[seed] - plain[seed] for seed in sorted(own.keys() & plain.keys())])


def left(
    rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]
) -> Iterator[tuple[str, str, int, float]]:
    """Yield the next trainings: those of the first seed that a module still needs and lacks."""
    for seed in range(SEEDS):
        todo = []
        for column, rate in rates.items():
            for module in (PLAIN, *ROWS):
                own = scores_of(rows, column, module)
                d = differences(rows, column, module)
                lost = len(d) and (np.isnan(d).any() or (len(d) >= LEAST and is_futile(d)[LEAST - 1 :].any()))
                if seed not in own and not (module != PLAIN and lost):
                    todo.append((column, module, seed, rate))
        if todo:
            yield from todo
            return


@cache
def _tuning() -> list[tuple[str, str, int, float]]:
    return [(column, PLAIN, TUNING + i, rate) for column in COLUMNS for i, rate in enumerate(RATES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="start no training after so many hours")
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
            todo = missing or list(left(rows, rates))
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
