"""The two searches of LARNN's author: each of its space, and the best LARNN beside the published one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from automl.report.grid_table import metrics_of
from automl.report.plot import Cell, Table
from automl.report.read import Search
from automl.studies.figures import TitledTable
from search.atomic import replacing
from search.record import State

# The published best test accuracy of each round in percent, by space.
ROUNDS: Mapping[str, str] = {"larnn": "85.65", "ucihar": "91.92"}
TRIALS, SMALL_TRIALS = 32, 4  # of each round; the source does not say how many it had

DATA = "generated-sequences.npz"
CLASSES, CHANNELS, STEPS = 3, 4, 24


def write_sequences(folder: Path) -> Path:
    """Write noisy waves, whose frequency tells the class, for the small form. Return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(count) % CLASSES
        phase = draw.uniform(0, 2 * np.pi, (count, CHANNELS, 1))
        waves = np.sin(np.arange(STEPS) * (0.3 + 0.3 * labels[:, None, None]) + phase)
        return (waves + draw.normal(0, 0.7, waves.shape)).astype(np.float32), labels

    (x_train, y_train), (x_test, y_test) = split(480), split(120)
    with replacing(folder / DATA) as new, new.open("wb") as file:
        np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, order="NCT")
    return folder / DATA


def rounds_table(searches: Mapping[str, Search]) -> TitledTable:
    """Return the best accuracy of a LARNN in each round, given the searches by their spaces."""
    rows: list[list[Cell]] = []
    notes = []
    for number, (space, search) in enumerate(searches.items(), start=1):
        metric = metrics_of(search)[0]
        trials = [trial for trial in search.done if trial.record.config.model.backbone == "larnn"]
        best = max(trials, key=search.score, default=None)
        row: list[Cell] = [number, space, search.counts[State.COMPLETE], search.counts[State.PRUNED]]
        if best is None:
            rows.append([*row, ROUNDS[space], "none has completed", None])
            continue
        peak = max(epoch[metric.name] for epoch in best.record.history if metric.name in epoch)
        rows.append([*row, ROUNDS[space], search.score(best), metric.scale * peak])
        params = ", ".join(f"{name}={value}" for name, value in best.params.items())
        notes.append(f"the best LARNN of round {number}: {params}")
    columns = ["round", "space", "complete", "pruned", "best, published", "best, last", "best, max"]
    table = Table(columns=columns, rows=rows)
    return TitledTable(title="larnn-rounds: accuracy of the best LARNN, %", table=table, notes=notes)
