"""Rank correlations of numerical hyperparameters with the metric and with each other."""

import math
from collections.abc import Sequence

import altair as alt
import numpy as np
from optuna.distributions import CategoricalDistribution
from scipy.stats import spearmanr

from automl.report import style
from automl.report.figure import Figure
from automl.report.importance import Importance, domains
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search, Trial
from automl.report.words import words

NAME, TITLE = "correlations", "Correlations"
LEAST = 4  # trials that have both numbers
MOST = 10  # hyperparameters in the figure


def correlations(search: Search, importances: Sequence[Importance]) -> Plot:
    """Plot Spearman's rank correlations over the finished trials as a matrix, the metric first.

    `importances` are the choices, the most important first. The numerical ones are shown.
    """
    spans = domains(search.done)
    names = [i.name for i in importances if not isinstance(spans[i.name], CategoricalDistribution)][:MOST]
    if not names:
        return absent(NAME, TITLE, f"It takes {LEAST} finished trials, and numbers that differ among them.")
    columns = [_scores(search, search.done), *(_values(search.done, name) for name in names)]
    labels = [search.plan.metric.name, *map(words, names)]
    table = np.array([[_rank(a, b) for b in columns] for a in columns])
    rows = [
        {
            "row": labels[i],
            "column": labels[j],
            "rank": None if math.isnan(v) else round(float(v), 3),
            "said": _cell_text(float(v), len(labels)),
            "dark": bool(abs(v) > style.DEEP),
        }
        for (i, j), v in np.ndenumerate(table)
    ]
    scale = alt.Scale(domain=labels)
    base = alt.Chart(alt.NamedData("ranks")).encode(
        x=alt.X("column:N", sort=labels, scale=scale, title=None, axis=alt.Axis(labelAngle=-90)),
        y=alt.Y("row:N", sort=labels, scale=scale, title=None),
        tooltip=[
            alt.Tooltip("row:N", title="of"), alt.Tooltip("column:N", title="with"),
            alt.Tooltip("rank:Q", title="rank correlation", format="+.2f"),
        ],
    )  # fmt: skip
    boxes = base.mark_rect(stroke=style.GREY, strokeWidth=0.4).encode(
        color=alt.Color(
            "rank:Q",
            scale=alt.Scale(domain=[-1, 0, 1], range=style.DIFFERENCE, interpolate="lab"),
            legend=alt.Legend(title="Spearman's rank correlation", gradientLength=140),
        )
    )
    shades = alt.condition("datum.dark", alt.value(style.WHITE), alt.value(style.DARK))
    texts = base.transform_filter("isValid(datum.rank)").mark_text().encode(text="said:N", color=shades)
    dashes = base.transform_filter("!isValid(datum.rank)").mark_text(color=style.INK).encode(text="said:N")
    figure = Figure(charts=[style.layer(boxes, texts, dashes, height=24 * len(labels))], data={"ranks": rows})
    ranks = zip(labels[1:], table[0, 1:], strict=True)
    values = [f"{name} {rank:+.2f}" for name, rank in ranks if math.isfinite(rank)]
    return Plot(
        name=NAME,
        title=TITLE,
        figure=figure,
        says=f"Rank correlation with {labels[0]}: {', '.join(values) or 'undefined for all'}.",
        note=(
            "Each pair is over the finished trials that have both. The sampler prefers what did well, so "
            "values that did well together are correlated. Of many, only the signs are shown, from 0.1 on. A "
            f"dash: fewer than {LEAST} trials, or all alike."
        ),
        table=Table(
            columns=["", *labels],
            rows=[
                [label, *(float(v) if math.isfinite(v) else None for v in row)]
                for label, row in zip(labels, table, strict=True)
            ],
        ),
    )


def _cell_text(rank: float, count: int) -> str:
    """Return the text of a cell: its number, or its sign if `count` columns make it narrow."""
    if math.isnan(rank):
        return "–"
    if count <= 6:
        return f"{rank:+.1f}"
    return "" if abs(rank) < 0.1 else "+" if rank > 0 else "−"


def _scores(search: Search, trials: Sequence[Trial]) -> np.ndarray:
    return np.array([search.score(trial) for trial in trials])


def _values(trials: Sequence[Trial], name: str) -> np.ndarray:
    """Return the values of a hyperparameter, NaN for trials without it."""
    return np.array([float(trial.params.get(name, math.nan)) for trial in trials])


def _rank(a: np.ndarray, b: np.ndarray) -> float:
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < LEAST or len(set(a[both])) < 2 or len(set(b[both])) < 2:
        return math.nan
    return float(spearmanr(a[both], b[both]).statistic)
