"""The comparison of SimpleSelfAttention at equal time: a sweep of learning rates, then the two models.

The learning rate is the one with the best mean of the maximum accuracy over epochs of the plain model, as in
the source. The model with attention gets as many epochs as take the plain one's time.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scipy import stats

from automl.base.units import format_duration
from automl.judge.statistics import paired
from automl.report.figure import Cell
from automl.report.grid_table import GridCell, deviation, read_grid
from automl.report.read import SearchData
from automl.search.run_search import Search
from automl.search.studies import TitledTable, compare, form_of, search_name, table_of, train_grid
from automl.task.published_study import Study
from automl.tasks.image_classification.study import STUDIES, equal_time_grid

# Of the second table epochs, runs and wall time; of the third runs, mean and deviation of the maximum.
PUBLISHED = {
    "xresnet18": ("50", "4", "9:28", "20", "84.98", "0.782"),
    "xresnet18 + ssa": ("47", "4", "9:37", "20", "85.67", "0.937"),
}
PUBLISHED_TEST = "difference 0.007, 95% interval 0.0014 to 0.0124, P = 0.0157"
ACCURACY = "accuracy"
SWEEP = next(study for study in STUDIES if study.name == "ssa-lr-sweep")


def best_rate(search: SearchData) -> float:
    """Return the learning rate of a sweep with the best mean of the maximum accuracy."""
    cells = [cell for cell in read_grid(search) if cell.scores[ACCURACY].best]
    best = max(cells, key=lambda cell: statistics.fmean(cell.scores[ACCURACY].best))
    return float(best.params["learning_rate"])


def sweep_table(search: SearchData) -> TitledTable:
    """Return the table of learning rates."""
    table = compare(SWEEP, search)
    note = f"The best mean of the maximum is at learning rate {best_rate(search):g}; published: 0.008."
    return replace(table, title="1. The plain model at a range of learning rates", notes=[note])


def comparison_tables(search: SearchData, rate: float) -> list[TitledTable]:
    """Return the table of times and that of accuracies, with the tests below it."""
    cells, scale = read_grid(search), search.metadata.scale
    times: list[dict[str, Cell]] = []
    scores: list[dict[str, Cell]] = []
    for cell in cells:
        name = str(cell.params["model"])
        epochs, timed, wall, runs, mean, sd = PUBLISHED[name]
        own = _epochs(cell, cells[0])
        took = [sum(epoch["seconds"] for epoch in r.history) for r in cell.records if r.history]
        times.append(
            {
                "model": name,
                "epochs, published": epochs,
                "runs, published": timed,
                "wall time, published": wall,
                "epochs": own,
                "runs": cell.runs,
                "mean training time": format_duration(statistics.fmean(took)) if took else None,
            }
        )
        row: dict[str, Cell] = {"model": name, "runs, published": runs, "max, published": mean}
        row |= {"max sd, published": sd, "epochs": own, "learning rate": f"{rate:g}", "runs": cell.runs}
        for kind in ("max", "last"):
            row[kind], row[f"{kind} sd"] = cell.mean_and_deviation(ACCURACY, kind)
        scores.append(row)
    notes = [f"published, independent t test of the maximum: {PUBLISHED_TEST}", *tests(cells)]
    accuracies = "3. The two models, accuracy in percent"
    return [
        TitledTable(title="2. Epochs of equal time", scale=scale, table=table_of(times)),
        TitledTable(title=accuracies, scale=scale, table=table_of(scores), notes=notes),
    ]


def _epochs(cell: GridCell, plain: GridCell) -> Cell:
    """Return the epochs of a cell by its training steps."""
    ours = [r.steps for r in cell.records if r.history and r.steps]
    theirs = [(r.steps, r.history[-1]["epoch"]) for r in plain.records if r.history and r.steps]
    if not ours or not theirs:
        return cell.outcome
    return statistics.fmean(ours) / statistics.fmean(steps / epochs for steps, epochs in theirs)


def tests(cells: Sequence[GridCell]) -> list[str]:
    """Return sentences with the independent t test and the paired comparison, for both kinds of accuracy."""
    sentences = []
    for kind, title in (("best", "maximum"), ("last", "last epoch")):
        theirs, ours = (getattr(cell.scores[ACCURACY], kind) for cell in cells)
        if min(len(theirs), len(ours)) < 2:
            return ["here: tests take 2 or more runs of each model; give --seeds 2 or more"]
        if not (deviation(ours) or deviation(theirs)):
            sentences.append(f"here, {title}: the runs of each model do not differ, so no test applies")
            continue
        test = stats.ttest_ind(ours, theirs)
        difference = (statistics.fmean(ours) - statistics.fmean(theirs)) / 100
        low, high = test.confidence_interval(0.95)
        sentences.append(
            f"here, independent t test of the {title}: difference {difference:+.4f}, "
            f"95% interval {low / 100:.4f} to {high / 100:.4f}, P = {test.pvalue:.4f}"
        )
        if len(ours) == len(theirs):  # both have the same seeds
            pairs = paired([a - b for a, b in zip(ours, theirs, strict=True)], margin=0.0)
            interval = "no interval, which takes 6 or more runs of each model"
            if math.isfinite(pairs.low):
                interval = f"95% interval {pairs.low / 100:.4f} to {pairs.high / 100:.4f}"
            sentences.append(
                f"here, paired by seed, {title}: difference {pairs.mean / 100:+.4f}, {interval}, "
                f"P = {pairs.p:.4f}"
            )
    return sentences


def run(study: Study, small: bool, settings: Mapping[str, Any]) -> tuple[list[Search], list[TitledTable]]:
    """Run the sweep of learning rates, and then both models with the best one."""
    form, called = form_of(study, small, settings), search_name(study, small)
    sweep = train_grid(study, f"{SWEEP.name}{form}", f"{called}-sweep", settings)
    if sweep.missing or not sweep.done:
        return [sweep], [sweep_table(sweep)] if sweep.done else []
    rate = best_rate(sweep)
    settings = {**settings, "equal": "time"}
    compared = train_grid(study, equal_time_grid(rate, form), f"{called}-{rate:g}", settings)
    return [sweep, compared], [sweep_table(sweep), *comparison_tables(compared, rate)]
