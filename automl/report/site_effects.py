"""Mean effect over the baseline by type and site."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import altair as alt

from automl.report import style
from automl.report.figure import Figure
from automl.report.plot import Plot, Table, absent
from automl.report.read import SearchData
from search.record import Role

NAME, TITLE = "placement", "Effect of each type at each site"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Mean effect of a type at a site over the trials that have it.

    Attributes:
        spread: The standard deviation, or None for a single trial.
        score: The mean final score, in the unit of the report.
    """

    mean: float
    score: float
    spread: float | None
    count: int


def effects(search: SearchData) -> tuple[dict[tuple[str, str], Effect], int]:
    """Return the effect of each (site, type), and the number of finished trials without a baseline.

    A trial's effect is its final score minus that of the best finished baseline with the same backbone.
    Larger is better. A trial with several modules counts at each of its sites.
    """
    best: dict[str, float] = {}
    for trial in search.done:
        model = trial.config.model
        if not model.placement or trial.role is Role.BASELINE:
            score = search.sign * search.score(trial)
            best[model.backbone] = max(best.get(model.backbone, -math.inf), score)
    gains: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    alone = 0
    for trial in search.done:
        model = trial.config.model
        if model.placement and model.backbone not in best:
            alone += 1
            continue
        for site, spec in model.placement.items():
            gains[site, spec.name].append(search.sign * search.score(trial) - best[model.backbone])
            scores[site, spec.name].append(search.score(trial))
    return {
        cell: Effect(
            mean=fmean(values),
            score=fmean(scores[cell]),
            spread=stdev(values) if len(values) > 1 else None,
            count=len(values),
        )
        for cell, values in gains.items()
    }, alone


def placement(search: SearchData) -> Plot:
    """Plot `effects` as a heatmap."""
    cells, alone = effects(search)
    if not cells:
        why = (
            "No trial without attention has completed, so there is nothing to compare with."
            if search.baseline is None
            else "No trial with attention has completed, beside a baseline of its backbone."
        )
        return absent(NAME, TITLE, why)
    sites = sorted({site for site, _ in cells}, key=natural)
    types = style.order({kind for _, kind in cells})
    figure = draw_cells(search, cells, sites, types)
    best = max(cells, key=lambda cell: cells[cell].mean)
    worst = min(cells, key=lambda cell: cells[cell].mean)
    above = sum(effect.mean > 0 for effect in cells.values())
    says = (
        f"{above} of {len(cells)} combinations of type and site have a mean above the best baseline. "
        f"Highest: {_sentence(search, best, cells)}; lowest: {_sentence(search, worst, cells)}."
    )
    note = (
        "Each cell: the mean of final score minus the best finished baseline's, its standard deviation, and "
        "of how many trials. Only completed trials count, with whatever hyperparameters "
        "they had; one with several modules counts at each of its sites. The baseline is the best of "
        "several, so an effect of 0 is good already."
    )
    if search.sign < 0:
        note += f" Signs are turned, as less {search.metric} is better: above 0 is a gain."
    if alone:
        note += f" {alone} trials are left out: no baseline of their backbone has completed."
    return Plot(
        name=NAME, title=TITLE, figure=figure, says=says, note=note,
        table=Table(
            columns=["site", "type", f"mean effect, {search.unit}", "standard deviation", "trials",
                     f"mean {search.label}"],
            rows=[[s, t, e.mean, e.spread, e.count, e.score] for (s, t), e in sorted(cells.items())],
        ),
    )  # fmt: skip


def _sentence(search: SearchData, cell: tuple[str, str], cells: Mapping[tuple[str, str], Effect]) -> str:
    effect = cells[cell]
    trials = "trial" if effect.count == 1 else "trials"
    score = f"{effect.score:.4g} {search.plan.metric.unit}".rstrip()
    return f"{cell[1]} at {cell[0]}, {search.gap(effect.mean)} ({score}) in {effect.count} {trials}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `block10` after `block9`, and a branch before its block."""
    parts = []
    for part in name.split("."):
        letters = part.rstrip("0123456789")
        number = part[len(letters) :]
        parts.append((0, int(number) if number else -1, letters))
    # `stage1.block2.branch` comes before `stage1.block2`: the longer one is inside.
    return [*parts, (1, 0, "")]


def draw_cells(
    search: SearchData,
    cells: Mapping[tuple[str, str], Effect],
    sites: Sequence[str],
    types: Sequence[str],
) -> Figure:
    """Draw a heatmap of effects by site and type, in the order of `sites` and `types`."""
    most = max(abs(effect.mean) for effect in cells.values()) or 1.0
    digits = min(4, max(0, 1 - math.floor(math.log10(most))))  # two that count in the largest
    rows = []
    for (site, kind), effect in cells.items():
        spread = "" if effect.spread is None else f" ±{effect.spread:.{digits}f}"
        rows.append(
            {
                "site": site,
                "type": kind,
                "effect": effect.mean,
                "first": f"{effect.mean:+.{digits}f}",
                "spread": spread.strip(),
                "count": f"n={effect.count}",
                "mean": f"{search.gap(effect.mean)}{spread}",
                "score": f"{effect.score:.4g} {search.plan.metric.unit}".rstrip(),
                "trials": effect.count,
                "dark": abs(effect.mean) > style.DEEP * most,
            }
        )
    base = alt.Chart(alt.NamedData("effects")).encode(
        x=alt.X(
            "type:N", sort=list(types), title=None, scale=alt.Scale(domain=list(types)),
            axis=alt.Axis(orient="top", labelAngle=-90 if len(types) > 3 else 0, domain=False, ticks=False),
        ),
        y=alt.Y(
            "site:N", sort=list(sites), title=None, scale=alt.Scale(domain=list(sites)),
            axis=alt.Axis(domain=False, ticks=False),
        ),
        tooltip=[
            alt.Tooltip("type:N", title="type"), alt.Tooltip("site:N", title="site"),
            alt.Tooltip("mean:N", title="mean effect"), alt.Tooltip("score:N", title=f"mean {search.metric}"),
            alt.Tooltip("trials:Q", title="trials"),
        ],
    )  # fmt: skip
    boxes = base.mark_rect(stroke=style.GREY, strokeWidth=0.4).encode(
        color=alt.Color(
            "effect:Q",
            scale=alt.Scale(domain=[-most, 0, most], range=style.DIFFERENCE, interpolate="lab"),
            legend=alt.Legend(
                title=f"{search.unit}: red is worse, blue is better", gradientLength=170,
                titleLimit=330,
            ),
        )
    )  # fmt: skip
    shade = alt.condition("datum.dark", alt.value(style.WHITE), alt.value(style.DARK))
    words = [
        base.mark_text(dy=dy, fontSize=9 if digits > 2 else 10.5).encode(text=f"{field}:N", color=shade)
        for field, dy in (("first", -11), ("spread", 0), ("count", 11))
    ]
    return Figure(charts=[style.layer(boxes, *words, height=40 * len(sites))], data={"effects": rows})
