"""The metric over each choice alone, and over pairs of the choices that matter most."""

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from textwrap import wrap
from typing import Any

import altair as alt
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from scipy.stats import spearmanr

from automl.report import style
from automl.report.figure import Chart, Figure
from automl.report.history import ZOOM
from automl.report.importance import Importance, domains
from automl.report.plot import Cell, Plot, Table, absent
from automl.report.read import Search, Trial
from automl.report.trials import TRIALS, columns, pointer_selection, source, state
from automl.report.words import is_site, site, value, words
from automl.report.words import names as names_of
from search.record import State

PANELS = 12  # of a figure
PAIRED = 4  # of the most important choices
ASIDE = "(datum.trial * 0.618034) % 1"  # trials of one choice stand side by side, each always in one place


def slices(search: Search, importances: Sequence[Importance]) -> list[Plot]:
    """Plot the metric over every parameter as small multiples, the most important first."""
    title = "Slices"
    if not search.done:
        return [absent("slices-1", title, "No trial has completed yet.")]
    spans = domains([*search.done, *search.pruned])
    ranks = {importance.name: i for i, importance in enumerate(importances)}
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
    sentences: list[str] = []
    rows: list[list[Cell]] = []
    charts: list[Chart] = []
    for parameter in names:
        having = [trial for trial in search.done if parameter in trial.params]
        relation, cells = _relation(search, spans[parameter], parameter, having)
        charts.append(_slice(search, spans[parameter], parameter))
        rows += cells
        sentences.append(f"{words(parameter)}: {relation}")
    return Plot(
        name=name, title=title,
        figure=Figure(charts=charts, data=source(search), zoom=True, narrow=True, wide=True),
        says=". ".join(sentences) + ".",
        note="Blue: finished trials. Orange ticks: where trials were pruned: no scores to compare. " + ZOOM,
        table=Table(
            columns=["choice", "value", "finished trials", f"mean {search.label}", "rank correlation"],
            rows=rows,
        ),
    )  # fmt: skip


def _slice(search: Search, kind: BaseDistribution, name: str) -> alt.LayerChart:
    field = columns(search)[name]
    x, aside = _axis(search, kind, name, "x")
    y = alt.Y(
        "score:Q", title=search.label, scale=alt.Scale(domain=_range(search), zero=False, nice=False),
        axis=alt.Axis(tickCount=4),
    )  # fmt: skip
    base = (
        alt.Chart(alt.NamedData(TRIALS))
        .transform_filter(f"isValid(datum.{field})")
        .transform_calculate(aside=ASIDE)
        .encode(x=x, **aside)
    )
    tip = alt.Tooltip(f"{field}:{'N' if aside else 'Q'}", title=words(name))
    points = (
        base.transform_filter(state(State.COMPLETE))
        .mark_point(size=24, color=style.BLUE, opacity=0.75, clip=True)
        .encode(y=y, **pointer_selection(search, tip))
    )
    rug = (
        base.transform_filter(state(State.PRUNED))
        .mark_tick(color=style.ORANGE, thickness=1, size=6, orient="vertical", clip=True)
        .encode(y=alt.value(136), **pointer_selection(search, tip))
    )
    title = alt.TitleParams(wrap(words(name), 18), frame="bounds", fontSize=11.5)
    return style.layer(points, rug, height=140).properties(title=title)


def pairs(search: Search, importances: Sequence[Importance]) -> Plot:
    """Plot the metric as colour over each two of the most important choices."""
    title = "Pairs of choices"
    names = [importance.name for importance in importances[:PAIRED]]
    spans = domains(search.done)
    both = [
        (a, b, having)
        for a, b in combinations(names, 2)
        if len(having := [t for t in search.done if a in t.params and b in t.params]) > 1
    ]
    if not both:
        return absent("pairs", title, "It takes two choices that differ among the finished trials.")
    sentences: list[str] = []
    rows: list[list[Cell]] = []
    charts: list[Chart] = []
    for a, b, having in both:
        best = max(having, key=lambda trial: search.sign * search.score(trial))
        first, second = _shown(search, a, best), _shown(search, b, best)
        sentences.append(f"{words(a)} with {words(b)}: best {first} and {second} of {len(having)}")
        rows.append([words(a), words(b), len(having), first, second, search.score(best)])
        charts.append(_pair(search, spans, a, b))
    return Plot(
        name="pairs", title=title, says="; ".join(sentences) + ".",
        figure=Figure(charts=charts, data=source(search), zoom=True, wide=True),
        note=f"Finished trials, over each two of the {len(names)} most important choices. Yellow is better. "
        + ZOOM,
        table=Table(columns=["choice", "and", "finished trials", "best of one", "best of the other",
                             search.label], rows=rows),
    )  # fmt: skip


def _pair(search: Search, spans: dict[str, BaseDistribution], a: str, b: str) -> alt.Chart:
    fields = columns(search)
    across, aside = _axis(search, spans[a], a, "x")
    up, above = _axis(search, spans[b], b, "y")
    scale = alt.Scale(scheme=style.MAP, domain=_range(search), clamp=True, reverse=search.sign < 0)
    tips = [
        alt.Tooltip(f"{fields[name]}:{'N' if jitter else 'Q'}", title=words(name))
        for name, jitter in ((a, aside), (b, above))
    ]
    chart = (
        alt.Chart(alt.NamedData(TRIALS))
        .transform_filter(state(State.COMPLETE))
        .transform_filter(f"isValid(datum.{fields[a]}) && isValid(datum.{fields[b]})")
        .transform_calculate(aside=ASIDE)
        .mark_point(size=55, stroke=style.GREY, strokeWidth=0.5, opacity=1, clip=True)
        .encode(
            x=across.title(style.brief(words(a), 40)),
            y=up.title(style.brief(words(b), 32)),
            color=alt.Color(
                "score:Q", scale=scale,
                legend=alt.Legend(title=search.label, gradientLength=110, tickCount=3),
            ),
            order=alt.Order("score:Q", sort="ascending" if search.sign > 0 else "descending"),
            **aside,
            **above,
            **pointer_selection(search, *tips),
        )
    )  # fmt: skip
    whole: alt.Chart = chart.properties(height=170)
    return whole


def _range(search: Search) -> list[float]:
    """Return the range of finished scores. With many trials the worst twentieth may be outside."""
    scores = [search.score(trial) for trial in search.done]
    part = 0.05 if len(scores) >= 40 else 0.0
    return style.window(scores, maximize=search.plan.metric.maximize, part=part)


def _axis(search: Search, kind: BaseDistribution, name: str, which: str) -> tuple[Any, dict[str, Any]]:
    """Return the encoding of a parameter on an axis, and the offset that separates trials of one category."""
    field = columns(search)[name]
    make, offset = (alt.X, alt.XOffset) if which == "x" else (alt.Y, alt.YOffset)
    labels = names_of(name, kind, search.trials)
    if labels is not None:
        long = max(map(len, labels)) * len(labels) > 15
        # Of more names than there is room for, some are left out; the pointer tells them.
        angle = -90 if long and which == "x" else 0
        axis = alt.Axis(labelAngle=angle, labelLimit=130, labelOverlap="greedy")
        scale = alt.Scale(domain=labels)
        spread = offset("aside:Q", scale=alt.Scale(domain=[-0.4, 1.4]))
        return make(f"{field}:N", sort=labels, title=None, scale=scale, axis=axis), {f"{which}Offset": spread}
    assert isinstance(kind, IntDistribution | FloatDistribution)
    if kind.log:
        scale = alt.Scale(type="log", domain=[kind.low / 1.2, kind.high * 1.2], nice=False)
        axis = alt.Axis(values=_round(kind.low, kind.high), format="~g")
        return make(f"{field}:Q", title=None, scale=scale, axis=axis), {}
    margin = max(0.06 * (kind.high - kind.low), 0.3 * (kind.step or 0)) or 0.5
    scale = alt.Scale(domain=[kind.low - margin, kind.high + margin], nice=False, zero=False)
    whole = isinstance(kind, IntDistribution)
    axis = alt.Axis(tickCount=4, **({"tickMinStep": 1, "format": "d"} if whole else {"format": "~g"}))
    return make(f"{field}:Q", title=None, scale=scale, axis=axis), {}


def _round(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis: powers of ten, and more between if these are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p * 1.001 <= high * 1.002]
        if len(ticks) > 2:
            return ticks
    return ticks


def _shown(search: Search, name: str, trial: Trial) -> str:
    """Return the value of a parameter in a trial, in words."""
    return site(name, trial) if is_site(name, search.trials) else value(trial.params[name])


def _relation(
    search: Search, kind: BaseDistribution, name: str, trials: Sequence[Trial]
) -> tuple[str, list[list[Cell]]]:
    """Return how the metric depends on a parameter: a phrase, and rows of the table."""
    scores = [search.score(trial) for trial in trials]
    labels = names_of(name, kind, search.trials)
    if labels is not None:
        means: dict[str, list[float]] = {label: [] for label in labels}
        for score, trial in zip(scores, trials, strict=True):
            means[_shown(search, name, trial)].append(score)
        rows: list[list[Cell]] = [
            [words(name), label, len(values), fmean(values) if values else None, None]
            for label, values in means.items()
        ]
        known = {label: fmean(values) for label, values in means.items() if values}
        best = max(known, key=lambda label: search.sign * known[label])
        if len(known) < 2:
            return f"{best} only", rows
        few = len(means[best])
        return f"{best} has the best mean, {known[best]:.4g} ({few} of {len(trials)} trials)", rows
    values = [float(trial.params[name]) for trial in trials]
    span = f"{min(values):.3g} to {max(values):.3g}"
    if len(set(values)) < 2 or len(set(scores)) < 2 or len(values) < 3:
        return "too few values to tell", [[words(name), span, len(values), fmean(scores), None]]
    rank = float(spearmanr(values, scores).statistic)
    return f"rank correlation {rank:+.2f} ({len(values)} trials)", [
        [words(name), span, len(values), fmean(scores), rank]
    ]
