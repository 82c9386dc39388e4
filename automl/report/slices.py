"""The metric over each choice alone, and over pairs of the choices that matter most."""

from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from scipy.stats import spearmanr

from automl.report import style
from automl.report.importance import Importance, domains
from automl.report.plot import Cell, Plot, Table, absent
from automl.report.read import Search, Trial

PANELS = 8  # of a figure, two in a row
PAIRED = 4  # of the most important choices
RUG = 150  # pruned trials that are marked in a panel


def slices(search: Search, found: Sequence[Importance]) -> list[Plot]:
    """Small multiples, every parameter of the search in one; the most important ones first."""
    title = "Slices"
    if not search.done:
        return [absent("slices-1", title, "No trial has completed yet.")]
    spans = domains([*search.done, *search.pruned])
    ranks = {importance.name: i for i, importance in enumerate(found)}
    names = sorted(
        (name for name in spans if any(name in trial.params for trial in search.done)),
        key=lambda name: (ranks.get(name, len(ranks)), name),
    )
    if not names:
        return [absent("slices-1", title, "The finished trials have no parameters.")]
    parts = [names[i : i + PANELS] for i in range(0, len(names), PANELS)]
    return [
        _slices(
            search, spans, part, f"slices-{i}", f"{title}, {i} of {len(parts)}" if len(parts) > 1 else title
        )
        for i, part in enumerate(parts, start=1)
    ]


def _slices(
    search: Search, spans: dict[str, BaseDistribution], names: Sequence[str], name: str, title: str
) -> Plot:
    low, high = _range(search)
    said: list[str] = []
    rows: list[list[Cell]] = []
    with style.style():
        figure, panels = _grid([_tick_height(spans[name]) for name in names])
        for i, (axes, parameter) in enumerate(zip(panels, names, strict=True)):
            having = [trial for trial in search.done if parameter in trial.params]
            scores = [search.score(trial) for trial in having]
            place = _axis(axes, "x", spans[parameter], parameter)
            axes.set_title(style.brief(parameter, 24))
            pruned = [trial for trial in search.pruned if parameter in trial.params]
            if pruned:
                some = pruned[:: max(1, len(pruned) // RUG)]
                axes.plot([place(t) for t in some], [0.02] * len(some), "|", color=style.ORANGE, markersize=4,
                          transform=axes.get_xaxis_transform(), zorder=2, rasterized=True)  # fmt: skip
            _points(axes, [place(t) for t in having], scores)
            axes.set_ylim(low, high)
            style.few_ticks(axes, y=4)
            if i % 2:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel(style.brief(search.label, 20))
            relation, cells = _relation(search, spans[parameter], parameter, having)
            rows += cells
            said.append(f"{parameter}: {relation}")
    return Plot(
        name=name, title=title, figure=figure, says=". ".join(said) + ".",
        note="Blue: finished trials. Orange ticks: where trials were pruned: no scores to compare.",
        table=Table(
            columns=["choice", "value", "finished trials", f"mean {search.label}", "rank correlation"],
            rows=rows,
        ),
    )  # fmt: skip


def pairs(search: Search, found: Sequence[Importance]) -> Plot:
    """The metric as colour over each two of the most important choices."""
    title = "Pairs of choices"
    names = [importance.name for importance in found[:PAIRED]]
    spans = domains(search.done)
    panels_of = [
        (a, b, having)
        for a, b in combinations(names, 2)
        if len(having := [t for t in search.done if a in t.params and b in t.params]) > 1
    ]
    if not panels_of:
        return absent("pairs", title, "It takes two choices that differ among the finished trials.")
    said: list[str] = []
    rows: list[list[Cell]] = []
    low, high = _range(search)
    with style.style():
        figure, panels = _grid(
            [_tick_height(spans[a]) + 0.15 for a, _, _ in panels_of], height=1.35, extra=0.5
        )
        for axes, (a, b, having) in zip(panels, panels_of, strict=True):
            across, up = _axis(axes, "x", spans[a], a), _axis(axes, "y", spans[b], b)
            # The best are drawn last and lie on top.
            having = sorted(having, key=lambda trial: search.sign * search.score(trial))
            points = axes.scatter(
                [across(t) for t in having], [up(t) for t in having], c=[search.score(t) for t in having],
                cmap=style.MAP if search.sign > 0 else f"{style.MAP}_r", vmin=low, vmax=high, s=15,
                edgecolors="white", linewidths=0.3, rasterized=len(having) > style.MANY, zorder=3,
            )  # fmt: skip
            axes.set_xlabel(style.brief(a, 24))
            axes.set_ylabel(style.brief(b, 20))
            best = having[-1]
            said.append(
                f"{a} with {b}: best {_text(best.params[a])} and {_text(best.params[b])} of {len(having)}"
            )
            rows.append([a, b, len(having), _text(best.params[a]), _text(best.params[b]), search.score(best)])
        bar = figure.colorbar(points, ax=panels, location="top", shrink=0.7, aspect=30, pad=0.01)
        bar.outline.set_visible(False)
        bar.ax.xaxis.set_major_locator(MaxNLocator(5))
        bar.set_label(f"{search.label}: yellow is better")
    return Plot(
        name="pairs", title=title, figure=figure, says="; ".join(said) + ".",
        note=f"Finished trials, over each two of the {len(names)} most important choices.",
        table=Table(columns=["choice", "and", "finished trials", "best of one", "best of the other",
                             search.label], rows=rows),
    )  # fmt: skip


def _grid(heights: Sequence[float], *, height: float = 1.2, extra: float = 0.1) -> tuple[Figure, list[Axes]]:
    """Panels, two in a row, of equal size whatever each needs below for its ticks."""
    below = [max(heights[i : i + 2]) for i in range(0, len(heights), 2)]
    figure = style.new(extra + height * len(below) + sum(below))
    panels = list(figure.subplots(len(below), 2, squeeze=False).flat)
    for axes in panels[len(heights) :]:
        axes.remove()
    return figure, panels[: len(heights)]


def _labels(kind: CategoricalDistribution) -> tuple[list[str], bool]:
    """Of the choices, and whether they are too wide to stand side by side below a panel."""
    labels = [style.brief(str(choice), 11) for choice in kind.choices]
    return labels, sum(len(label) + 1 for label in labels) * style.LETTER > 1.25


def _tick_height(kind: BaseDistribution) -> float:
    """Inches that the ticks need below a panel."""
    if isinstance(kind, CategoricalDistribution):
        labels, wide = _labels(kind)
        if wide:
            return style.LETTER * max(map(len, labels)) + 0.1
    return 0.2


def _range(search: Search) -> tuple[float, float]:
    """Of the finished trials' scores; the worst twentieth may leave the picture where there are many."""
    scores = [search.score(trial) for trial in search.done]
    part = 0.05 if len(scores) >= 40 else 0.0
    low, high = np.quantile(scores, [part, 1.0] if search.plan.metric.maximize else [0.0, 1 - part])
    margin = 0.08 * (high - low) or 0.5 * search.factor / 100
    return float(low - margin), float(high + margin)


def _points(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    axes.plot(
        x, y, linestyle="none", marker="o", markersize=3.6, color=style.BLUE, alpha=0.75, zorder=3,
        markeredgecolor="white", markeredgewidth=0.3, rasterized=len(x) > style.MANY,
    )  # fmt: skip


def _axis(axes: Axes, which: str, kind: BaseDistribution, name: str) -> Callable[[Trial], float]:
    """Set up an axis for the parameter `name`, and return a trial's position on it."""
    axis, limit = (axes.xaxis, axes.set_xlim) if which == "x" else (axes.yaxis, axes.set_ylim)
    if isinstance(kind, CategoricalDistribution):
        labels, wide = _labels(kind)
        axis.set_ticks(range(len(labels)), labels, rotation=90 if wide and which == "x" else 0)
        limit(-0.5, len(labels) - 0.5)

        def at_choice(trial: Trial) -> float:
            return kind.choices.index(trial.params[name]) + _aside(trial) / 2

        return at_choice
    assert isinstance(kind, IntDistribution | FloatDistribution)
    if kind.log:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        axis.set_major_locator(LogLocator(numticks=4))
        axis.set_minor_locator(NullLocator())
        limit(kind.low / 1.2, kind.high * 1.2)
    else:
        margin = max(0.06 * (kind.high - kind.low), 0.3 * (kind.step or 0)) or 0.5
        limit(kind.low - margin, kind.high + margin)
        whole = isinstance(kind, IntDistribution)
        axis.set_major_locator(MaxNLocator(4, integer=whole, steps=[1, 2, 2.5, 5, 10]))

    step = 0.0 if kind.log or kind.step is None or (kind.high - kind.low) / kind.step > 20 else kind.step

    def at_number(trial: Trial) -> float:
        return float(trial.params[name]) + step * _aside(trial) / 3

    return at_number


def _aside(trial: Trial) -> float:
    """From -0.5 to 0.5: trials of one choice stand side by side, each always in the same place."""
    return (trial.number * 0.618034) % 1 - 0.5


def _relation(
    search: Search, kind: BaseDistribution, name: str, trials: Sequence[Trial]
) -> tuple[str, list[list[Cell]]]:
    """How the metric goes with a parameter: a phrase, and rows of the table."""
    scores = [search.score(trial) for trial in trials]
    if isinstance(kind, CategoricalDistribution):
        means = {
            choice: [s for s, t in zip(scores, trials, strict=True) if t.params[name] == choice]
            for choice in kind.choices
        }
        rows: list[list[Cell]] = [
            [name, _text(choice), len(values), fmean(values) if values else None, None]
            for choice, values in means.items()
        ]
        known = {choice: fmean(values) for choice, values in means.items() if values}
        best = max(known, key=lambda choice: search.sign * known[choice])
        if len(known) < 2:
            return f"{_text(best)} only", rows
        return f"{_text(best)} has the best mean, {known[best]:.4g}", rows
    values = [float(trial.params[name]) for trial in trials]
    span = f"{min(values):.3g} to {max(values):.3g}"
    if len(set(values)) < 2 or len(set(scores)) < 2 or len(values) < 3:
        return "too few values to tell", [[name, span, len(values), fmean(scores), None]]
    rank = float(spearmanr(values, scores).statistic)
    return f"rank correlation {rank:+.2f} ({len(values)} trials)", [
        [name, span, len(values), fmean(scores), rank]
    ]


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
