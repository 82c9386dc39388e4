"""Rank correlations of numerical hyperparameters with the metric and with each other."""

import math
from collections.abc import Sequence

import numpy as np
from optuna.distributions import CategoricalDistribution
from scipy.stats import spearmanr

from automl.report import style
from automl.report.importance import Importance, domains
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search, Trial

NAME, TITLE = "correlations", "Correlations"
LEAST = 4  # trials that have both numbers
MOST = 10  # hyperparameters in the figure


def correlations(search: Search, found: Sequence[Importance]) -> Plot:
    """A matrix of Spearman's rank correlation over the finished trials, the metric first.

    found: the choices, the most important first; of them the numerical ones are shown.
    """
    spans = domains(search.done)
    names = [i.name for i in found if not isinstance(spans[i.name], CategoricalDistribution)][:MOST]
    if not names:
        return absent(NAME, TITLE, f"It takes {LEAST} finished trials, and numbers that differ among them.")
    columns = [_scores(search, search.done), *(_values(search.done, name) for name in names)]
    labels = [search.plan.metric.name, *names]
    table = np.array([[_rank(a, b) for b in columns] for a in columns])
    with style.style():
        figure = style.new(0.9 + 0.3 * len(labels))
        axes = figure.subplots()
        shown = np.ma.masked_invalid(table)
        image = axes.imshow(shown, cmap=style.DIFFERENCE, vmin=-1, vmax=1, aspect="auto")
        ticks = range(len(labels))
        axes.set_xticks(ticks, [style.brief(label, 16) for label in labels], rotation=90)
        axes.set_yticks(ticks, [style.brief(label, 21) for label in labels])
        axes.grid(visible=False)
        for row, column in np.ndindex(*table.shape):
            value = table[row, column]
            text = f"{value:+.1f}" if math.isfinite(value) else "–"
            axes.text(column, row, text, ha="center", va="center", fontsize=6.2)
        bar = figure.colorbar(image, ax=axes, location="top", shrink=0.7, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("Spearman's rank correlation")
    said = [f"{name} {table[0, i]:+.2f}" for i, name in enumerate(names, 1) if math.isfinite(table[0, i])]
    return Plot(
        name=NAME,
        title=TITLE,
        figure=figure,
        says=f"Rank correlation with {labels[0]}: {', '.join(said) or 'undefined for all'}.",
        note=(
            "Each pair is over the finished trials that have both. The sampler prefers what did well, so "
            f"values that did well together are correlated. A dash: fewer than {LEAST} trials, or all alike."
        ),
        table=Table(
            columns=["", *labels],
            rows=[
                [label, *(float(v) if math.isfinite(v) else None for v in row)]
                for label, row in zip(labels, table, strict=True)
            ],
        ),
    )


def _scores(search: Search, trials: Sequence[Trial]) -> np.ndarray:
    return np.array([search.score(trial) for trial in trials])


def _values(trials: Sequence[Trial], name: str) -> np.ndarray:
    """Of a hyperparameter, NaN where a trial has none."""
    return np.array([float(trial.params.get(name, math.nan)) for trial in trials])


def _rank(a: np.ndarray, b: np.ndarray) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < LEAST or len(set(a[both])) < 2 or len(set(b[both])) < 2:
        return math.nan
    return float(spearmanr(a[both], b[both]).statistic)
