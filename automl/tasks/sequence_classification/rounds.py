"""The two searches of LARNN's author: each of its space, and the best LARNN beside the published one."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.atomic import replacing
from automl.base.errors import InputError
from automl.config.settings import Settings
from automl.report.figure import Cell
from automl.report.grid_table import metrics_of
from automl.report.read import SearchData
from automl.search.run_search import Search, start_or_resume
from automl.search.studies import TitledTable, describe_scale, search_name, table_of
from automl.task.published_study import Study
from automl.tasks.sequence_classification.space import ROUNDS

SMALL_TRIALS = 4  # of each round

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


def rounds_table(study: Study, searches: Mapping[str, SearchData]) -> TitledTable:
    """Return the best accuracy of a LARNN in each round, given the searches by their spaces."""
    rows: list[dict[str, Cell]] = []
    notes, scales = [*study.notes], []
    for number, (space, search) in enumerate(searches.items(), start=1):
        metric, published = metrics_of(search)[0], ROUNDS[space]
        trials = [trial for trial in search.done if trial.config.model.backbone == "larnn"]
        best = max(trials, key=search.score, default=None)
        scores = [] if best is None else [e[metric.name] for e in best.history if metric.name in e]
        rows.append(
            {
                "round": number,
                "space": space,
                "trials, published": published.trials,
                "LARNNs, complete": len(trials),
                "best of test, published": published.accuracy,
                "best of validation, last": None if best is None else search.score(best),
                "best of validation, max": metric.scale * max(scores) if scores else None,
            }
        )
        scales.append(f"Round {number}. {search.metadata.scale}")
        if best is not None:
            params = ", ".join(f"{name}={value}" for name, value in best.params.items())
            notes.append(f"the best LARNN of round {number}: {params}")
    title = "larnn-rounds: accuracy of the best LARNN, %"
    return TitledTable(title=title, scale=" ".join(scales), table=table_of(rows), notes=notes)


def run(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    """Search the space of each round, as the source did. These are not grids."""
    if settings["seeds"] > 1:
        raise InputError(f"study {study.name!r} consists of two searches without cells; leave --seeds out")
    called = search_name(study, small)
    if small and settings["data"] is None:
        settings = {**settings, "data": str(write_sequences(Path(settings["storage"])))}
    results = []
    for space, published in ROUNDS.items():
        trials = SMALL_TRIALS if small else published.trials
        search_settings = Settings(
            space=space, sampler="tpe", name=f"{called}-{space}", trials=trials, **settings
        ).parsed
        setup = {**study.setup, "epochs": str(published.epochs)}
        results.append(start_or_resume(search_settings, partial(describe_scale, setup)))
    return results, [rounds_table(study, dict(zip(ROUNDS, results, strict=True)))]
