"""The look of the figures: one palette that is safe for colour blindness, in light and in dark.

Kinds of a trial have the colours of M. Okabe and K. Ito, Color Universal Design (2008), and a shape each, so
that nothing is shown by colour alone. Text, axes and what has no colour of its own are `currentColor`: the
page's, by its theme.
"""

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

import altair as alt
import numpy as np

from attention import ATTENTIONS
from automl.report.read import SearchData
from search.record import MIXED, PLAIN

TRIALS = "trials"  # the data of charts about trials
COSTS = ("time_ratio", "latency", "params", "macs")

WIDTH = 340  # CSS pixels of a figure in a file: what a phone has between its margins
HEIGHT = 190

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
RED, GREY, INK, DARK, WHITE = "#CC3311", "#808080", "currentColor", "#000000", "#ffffff"
# The colours in the marks of attention types.
COLOURS = {
    "sky": SKY, "green": GREEN, "blue": BLUE, "vermilion": VERMILION, "purple": PURPLE, "grey": GREY,
}  # fmt: skip

DEEP = 0.94  # the part of the scale from which white text has more contrast than black

HEXAGON = "M0,-.9L.78,-.45L.78,.45L0,.9L-.78,.45L-.78,-.45Z"
HOURGLASS = "M-.8,-.8L.8,-.8L-.8,.8L.8,.8Z"

_KNOWN = {
    MIXED: (ORANGE, "triangle-right"),
    PLAIN: (INK, "M0,-1L.24,-.32L.95,-.31L.38,.12L.59,.81L0,.4L-.59,.81L-.38,.12L-.95,-.31L-.24,-.32Z"),
}

CONFIG: dict[str, Any] = {
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica Neue, Arial, DejaVu Sans, sans-serif",
    "view": {"stroke": None},
    "aria": False,  # the figure has one label; a thousand trials would have a thousand
    "axis": {
        "labelColor": INK, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 11.5,
        "titleFontWeight": "normal", "gridColor": INK, "gridOpacity": 0.12, "domainColor": INK,
        "domainOpacity": 0.5, "tickColor": INK, "tickOpacity": 0.5, "tickSize": 4, "titlePadding": 5,
        "labelLimit": 150, "titleLimit": 330,
    },
    "legend": {
        "orient": "top", "title": None, "labelColor": INK, "titleColor": INK, "labelFontSize": 11.5,
        "titleFontSize": 11.5, "titleFontWeight": "normal", "columns": 3, "symbolSize": 55, "offset": 6,
        "labelLimit": 220, "columnPadding": 8, "rowPadding": 1,
        "layout": {"top": {"direction": "vertical", "anchor": "start", "margin": 2}},
    },
    "title": {"color": INK, "fontSize": 12, "fontWeight": 600, "anchor": "start", "offset": 4, "limit": 320},
    "text": {"color": INK, "fontSize": 10.5},
    "rule": {"color": INK},
    "point": {"filled": True, "size": 45, "opacity": 0.9},
}  # fmt: skip


def colours_and_shapes(types: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and shape, which has an area, of attention types, with spare ones for unknown types."""
    spare = zip(cycle((BLUE, ORANGE, GREEN, RED)), cycle((HEXAGON, HOURGLASS, "triangle-left")), strict=False)
    marks = {name: attention.mark.split() for name, attention in ATTENTIONS.items() if attention.mark}
    known = {**_KNOWN, **{name: (COLOURS[colour], shape) for name, (colour, shape) in marks.items()}}
    return {kind: known.get(kind) or next(spare) for kind in sorted(set(types))}


def order(kinds: Iterable[str]) -> list[str]:
    """Return the kinds in their common order: plain, the attention types as their table has them, mixed."""
    known = [PLAIN, *ATTENTIONS, MIXED]
    return sorted(set(kinds), key=lambda kind: (known.index(kind) if kind in known else 99, kind))


def by_kind(search: SearchData, kinds: Iterable[str]) -> dict[str, Any]:
    """Return the encodings of a mark for a trial of each kind, which are common to a search's figures."""
    present = order(kinds)
    every = colours_and_shapes(kind for trial in search.trials for kind in (*trial.types, trial.kind))
    colours, shapes = (named({kind: every[kind][i] for kind in present}) for i in range(2))
    legend = alt.Legend(columns=3)
    return {
        "color": alt.Color("kind:N", scale=colours, legend=legend),
        "shape": alt.Shape("kind:N", scale=shapes, legend=legend),
    }


def chart(data: str) -> alt.Chart:
    """Return a chart of a data set of the figure."""
    return alt.Chart(alt.NamedData(data))


def named(values: dict[str, str]) -> alt.Scale:
    """Return a scale with a colour or a shape for each name, in this order."""
    return alt.Scale(domain=list(values), range=list(values.values()))


def layer(*charts: alt.Chart, height: int) -> alt.LayerChart:
    """Return charts on top of each other."""
    whole = alt.layer(*charts)
    assert isinstance(whole, alt.LayerChart)
    return whole.properties(height=height)


def brief(text: str, most: int = 22) -> str:
    """Return a name that fits. A long name loses its middle."""
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[:half]}…{text[-(most - 1 - half) :]}"


def window(values: Sequence[float], *, maximize: bool) -> list[float]:
    """Return the range of an axis of scores. The worst 5 % may be outside, so the rest stays readable."""
    low, high = np.quantile(values, [0.05, 1.0] if maximize else [0.0, 0.95])
    margin = 0.06 * float(high - low) or 0.5
    return [float(low) - margin, float(high) + margin]


def source(search: SearchData) -> dict[str, list[dict[str, Any]]]:
    """Return the data of a figure about trials: a row for each with a score."""
    rows = []
    for trial in search.trials:
        score = search.final(trial)
        if score is None or score != score:
            continue
        row: dict[str, Any] = {
            "trial": trial.number, "what": search.where(trial), "kind": trial.kind, "state": str(trial.state),
            "score": float(f"{score:.6g}"), "epochs": round(trial.resource, 2),
        }  # fmt: skip
        if trial.steps is not None:
            row["steps"] = trial.steps
        row |= {key: float(f"{v:.5g}") for key in COSTS if (v := trial.profile.get(key)) is not None}
        if trial.number in search.links:
            row["link"] = search.links[trial.number]
        rows.append(row)
    return {TRIALS: rows}


def pointer_selection(search: SearchData, *more: alt.Tooltip) -> dict[str, Any]:
    """Return the encodings of a mark for a trial: its tooltip, and a link to its run in MLflow."""
    tips = [
        alt.Tooltip("trial:Q", title="trial", format="d"),
        alt.Tooltip("what:N", title="placement"),
        alt.Tooltip("score:Q", title=search.plan.metric.label, format=".4~g"),
        alt.Tooltip("epochs:Q", title="epochs", format="~g"),
        alt.Tooltip("steps:Q", title="steps", format="d"),
        *more,
        alt.Tooltip("state:N", title="state"),
    ]
    return {"tooltip": tips, **({"href": alt.Href("link:N")} if search.links else {})}
