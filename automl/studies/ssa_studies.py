"""The comparison of SimpleSelfAttention at equal time: a sweep of learning rates, then the two models.

The learning rate is the one with the best mean of the maximum accuracy over epochs of the plain model, as in
the source. The model with attention gets as many epochs as take the plain one's time.
"""

import math
import statistics
from collections.abc import Sequence

from scipy import stats

from automl.config.units import format_duration
from automl.confirm.statistics import paired
from automl.report.grid_table import GridCell, deviation, read_grid
from automl.report.plot import Cell, Table
from automl.report.read import Search
from automl.studies.figures import TitledTable, mean_and_deviation
from automl.studies.study_table import SWEEP

# Of the second table epochs, runs and wall time; of the third runs, mean and deviation of the maximum.
PUBLISHED = {
    "xresnet18": ("50", "4", "9:28", "20", "84.98", "0.782"),
    "xresnet18 + ssa": ("47", "4", "9:37", "20", "85.67", "0.937"),
}
PUBLISHED_TEST = "difference 0.007, 95% interval 0.0014 to 0.0124, P = 0.0157"
ACCURACY = "accuracy"


def best_rate(search: Search) -> float:
    """Return the learning rate of a sweep with the best mean of the maximum accuracy."""
    cells = [cell for cell in read_grid(search) if cell.scores[ACCURACY].best]
    best = max(cells, key=lambda cell: statistics.fmean(cell.scores[ACCURACY].best))
    return float(best.params["learning_rate"])


def sweep_table(search: Search) -> TitledTable:
    """Return the table of learning rates."""
    rows: list[list[Cell]] = []
    for cell in read_grid(search):
        rate = float(cell.params["learning_rate"])
        runs, mean = SWEEP[rate]
        rows.append([f"{rate:g}", runs, mean, cell.runs, *_last_and_max(cell)])
    return TitledTable(
        title="1. The plain model at a range of learning rates",
        scale=search.metadata.scale,
        table=Table(columns=["learning rate", "runs, published", "max, published", *_COLUMNS], rows=rows),
        notes=[f"The best mean of the maximum is at learning rate {best_rate(search):g}; published: 0.008."],
    )


_COLUMNS = ["runs", "max", "max sd", "last", "last sd"]


def _last_and_max(cell: GridCell) -> list[Cell]:
    return [*mean_and_deviation(cell, ACCURACY, "max"), *mean_and_deviation(cell, ACCURACY, "last")]


def comparison_tables(search: Search, rate: float) -> list[TitledTable]:
    """Return the table of times and that of accuracies, with the tests below it."""
    cells = read_grid(search)
    plain = cells[0]
    times: list[list[Cell]] = []
    scores: list[list[Cell]] = []
    for cell in cells:
        epochs, timed, wall, runs, mean, sd = PUBLISHED[str(cell.params["model"])]
        own = _epochs(cell, plain)
        took = [sum(epoch["seconds"] for epoch in r.history) for r in cell.records if r.history]
        clock = format_duration(statistics.fmean(took)) if took else None
        name = str(cell.params["model"])
        times.append([name, epochs, timed, wall, own, cell.runs, clock])
        scores.append([name, runs, mean, sd, own, f"{rate:g}", cell.runs, *_last_and_max(cell)])
    return [
        TitledTable(
            title="2. Epochs of equal time",
            scale=search.metadata.scale,
            table=Table(
                columns=[
                    "model",
                    "epochs, published",
                    "runs, published",
                    "wall time, published",
                    "epochs",
                    "runs",
                    "mean training time",
                ],
                rows=times,
            ),
        ),
        TitledTable(
            title="3. The two models, accuracy in percent",
            scale=search.metadata.scale,
            table=Table(
                columns=[
                    "model",
                    "runs, published",
                    "max, published",
                    "max sd, published",
                    "epochs",
                    "learning rate",
                    *_COLUMNS,
                ],
                rows=scores,
            ),
            notes=[f"published, independent t test of the maximum: {PUBLISHED_TEST}", *tests(cells)],
        ),
    ]


def _epochs(cell: GridCell, plain: GridCell) -> Cell:
    """Return the epochs of a cell by its training steps."""
    ours = [r.steps for r in cell.records if r.history and r.steps]
    theirs = [(r.steps, len(r.history)) for r in plain.records if r.history and r.steps]
    if not ours or not theirs:
        return cell.outcome
    of_epoch = statistics.fmean(steps / epochs for steps, epochs in theirs)
    return statistics.fmean(ours) / of_epoch


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
