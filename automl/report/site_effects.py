"""Effects by site and type of trained placements, and the gates after training.

A new module has a gate of 0 and is the identity.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

import altair as alt

from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import Figure, Plot, Table, absent
from automl.report.read import SearchData
from search.record import Role

LEAST = 4  # cells of a rank correlation


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
            score = search.plan.metric.sign * search.score(trial)
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
            gains[site, spec.name].append(
                search.plan.metric.sign * search.score(trial) - best[model.backbone]
            )
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
    name, title = "placement", "Effect of each type at each site"
    cells, alone = effects(search)
    if not cells:
        why = (
            "No trial without attention has completed, so there is nothing to compare with."
            if search.baseline is None
            else "No trial with attention has completed, beside a baseline of its backbone."
        )
        return absent(name, title, why)
    figure = _draw_cells(search, cells)
    best, worst = (choose(cells, key=lambda cell: cells[cell].mean) for choose in (max, min))
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
    if search.plan.metric.sign < 0:
        note += f" Signs are turned, as less {search.metric} is better: above 0 is a gain."
    if alone:
        note += f" {pluralize(alone, 'trials are left out')}: no baseline of their backbone has completed."
    return Plot(
        name=name, title=title, figure=figure, says=says, note=note,
        table=Table(
            columns=["site", "type", f"mean effect, {search.plan.metric.gap_unit}", "standard deviation",
                     "trials", f"mean {search.plan.metric.label}"],
            rows=[[s, t, e.mean, e.spread, e.count, e.score] for (s, t), e in sorted(cells.items())],
        ),
    )  # fmt: skip


def _sentence(search: SearchData, cell: tuple[str, str], cells: Mapping[tuple[str, str], Effect]) -> str:
    effect = cells[cell]
    score = f"{effect.score:.4g} {search.plan.metric.unit}".rstrip()
    trials = pluralize(effect.count, "trials")
    return f"{cell[1]} at {cell[0]}, {search.gap(effect.mean)} ({score}) in {trials}"


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `block10` after `block9`, and a branch before its block."""
    parts = []
    for part in name.split("."):
        letters = part.rstrip("0123456789")
        number = part[len(letters) :]
        parts.append((0, int(number) if number else -1, letters))
    # `stage1.block2.branch` comes before `stage1.block2`: the longer one is inside.
    return [*parts, (1, 0, "")]


def _draw_cells(search: SearchData, cells: Mapping[tuple[str, str], Effect]) -> Figure:
    sites, types = sorted({site for site, _ in cells}, key=natural), style.order(kind for _, kind in cells)
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
    base = style.chart("effects").encode(
        x=alt.X(
            "type:N", sort=types, title=None, scale=alt.Scale(domain=types),
            axis=alt.Axis(orient="top", labelAngle=-90 if len(types) > 3 else 0, domain=False, ticks=False),
        ),
        y=alt.Y(
            "site:N", sort=sites, title=None, scale=alt.Scale(domain=sites),
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
                title=f"{search.plan.metric.gap_unit}: red is worse, blue is better", gradientLength=170,
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


def gates(search: SearchData) -> Plot:
    """Plot the absolute gate of each module of the finished trials after the last epoch, by site and type."""
    name, title = "gates", "Learned gates"
    values_of: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for trial in search.done:
        last = trial.history[-1]
        for site, spec in trial.config.model.placement.items():
            if f"gate.{site}" in last:
                values_of[site, spec.name].append(abs(last[f"gate.{site}"]))
    if not values_of:
        return absent(name, title, "No trial with a gate has completed yet.")
    sites = sorted({site for site, _ in values_of}, key=natural)
    middles = {
        site: median([v for (s, _), vs in values_of.items() if s == site for v in vs]) for site in sites
    }
    wide, narrow = (choose(middles, key=lambda site: middles[site]) for choose in (max, min))
    return Plot(
        name=name,
        title=title,
        figure=_draw_gates(search, values_of, middles),
        says=(
            f"{pluralize(sum(map(len, values_of.values())), 'modules')} of finished trials. The median "
            "|gate| "
            f"is largest at {wide} ({middles[wide]:.2g}) and smallest at {narrow} ({middles[narrow]:.2g})."
        ),
        note="A module starts with a gate of 0, as the identity; a gate that stays near 0 was not used.",
        table=Table(
            columns=["site", "type", "modules", "median |gate|", "largest"],
            rows=[
                [site, kind, len(values), median(values), max(values)]
                for (site, kind), values in sorted(values_of.items(), key=lambda item: natural(item[0][0]))
            ],
        ),
    )


def _draw_gates(
    search: SearchData, values_of: Mapping[tuple[str, str], Sequence[float]], middles: Mapping[str, float]
) -> Figure:
    kinds = style.order({kind for _, kind in values_of})
    y = alt.Y("site:N", sort=list(middles), title=None, scale=alt.Scale(domain=list(middles)))
    points = style.chart("gates").mark_point(size=30).encode(
        x=alt.X("gate:Q", title="|gate| after the last epoch; bar: median"),
        y=y,
        yOffset=alt.YOffset("kind:N", scale=alt.Scale(domain=kinds)),
        tooltip=["site:N", alt.Tooltip("kind:N", title="type"), alt.Tooltip("gate:Q", title="|gate|")],
        **style.by_kind(search, kinds, columns=2),
    )  # fmt: skip
    bars = style.chart("medians").mark_tick(thickness=2, color=style.INK).encode(
        x="median:Q", y=y, tooltip=["site:N", alt.Tooltip("median:Q", title="median |gate|")],
    )  # fmt: skip
    return Figure(
        charts=[style.layer(points, bars, height=24 * len(middles) + 10)],
        data={
            "gates": [
                {"site": site, "kind": kind, "gate": float(f"{value:.4g}")}
                for (site, kind), values in values_of.items()
                for value in values
            ],
            "medians": [{"site": site, "median": float(f"{v:.4g}")} for site, v in middles.items()],
        },
    )
