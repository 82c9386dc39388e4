"""The verdict as a forest plot, and the network with the modules of the winner or the best trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import altair as alt

from automl.base.units import pluralize
from automl.judge.verdict import Comparison, TrainedVariant, Verdict
from automl.report import style
from automl.report.figure import Cell, Figure, Plot, Table, absent
from automl.report.read import SearchData
from search.config import TrialConfig
from search.metric import Metric
from search.record import Role

TITLE = "Difference from the baseline"

# The position of the interval: colour and shape, so that the colour alone carries no information.
_ABOVE, _BELOW, _AROUND = "above 0", "below 0", "around 0"
_COLOURS_AND_SHAPES = {
    _ABOVE: (style.BLUE, "circle"),
    _BELOW: (style.RED, "triangle-down"),
    _AROUND: (style.GREY, "diamond"),
}


def forest(verdict: Verdict, metric: Metric) -> Plot:
    """Plot the variants of a confirmation that have an interval."""
    shown = [c for c in verdict.comparisons if c.difference.bounds is not None]
    table = _table(verdict, metric)
    if not shown:
        seeds = pluralize(len(verdict.used), "paired seeds")
        return absent("verdict", TITLE, f"No variant has an interval against the baseline, with {seeds}.")
    figure = _draw(shown, verdict)
    design = verdict.design
    split = f", {design.kind.split} split" if design.kind.split else ""  # unknown for commands
    digits = design.decimals
    says = "; ".join(
        f"{_named(c)} {c.difference.mean:+.{digits}f} {design.unit}, {_span(c.difference.bounds, digits)}"
        for c in shown
    )
    return Plot(
        name="verdict",
        title=TITLE,
        figure=figure,
        says=f"{says}. {pluralize(len(verdict.used), 'paired seeds')}{split}.",
        note=(
            f"Dots are mean differences over paired seeds, bars their 95 % intervals. An interval right of 0 "
            f"is a gain, one left of it a loss; one within the grey band of ±{design.margin:.3g} "
            f"{design.unit} is no difference that matters. Thin lines are over seeds and test inputs."
        ),
        table=table,
    )


def _table(verdict: Verdict, metric: Metric) -> Table:
    """Return a table of the baseline and each variant. Empty columns are left out."""
    design, digits = verdict.design, verdict.design.decimals
    columns = ["variant", design.unit, "95 % interval", "over inputs too", "p"]
    columns += [f"{design.kind.split} {metric.label}".strip(), "steps", "time", "time ratio"]
    rows: list[list[Cell]] = [
        [variant.name if variant.name.startswith("baseline") else f"baseline: {variant.name}", *[None] * 4,
         *_measured(variant, metric.scale), None]
        for variant in verdict.variants
        if variant.role is Role.BASELINE
    ]  # fmt: skip
    rows += [
        [
            _named(c),
            f"{c.difference.mean:+.{digits}f}",
            _span(c.difference.bounds, digits),
            _span(c.images, digits),
            f"{c.difference.p:.2g}" if c.p_holm is None else f"{c.p_holm:.2g} (Holm)",
            *_measured(verdict.variant(c.variant), metric.scale),
            None if c.time is None else f"{c.time.mean:.2f}",
        ]
        for c in verdict.comparisons
    ]
    used = [i for i in range(len(columns)) if i == 0 or any(row[i] is not None for row in rows)]
    return Table(columns=[columns[i] for i in used], rows=[[row[i] for i in used] for row in rows])


def _measured(variant: TrainedVariant, scale: float) -> list[Cell]:
    """Return the score with its spread over seeds, the steps, and the time of a training by the clock."""
    scores = [scale * score for score in variant.scores.values()]
    score = None
    if scores:
        score = f"{mean(scores):.4g}" + (f" ± {stdev(scores):.2g}" if len(scores) > 1 else "")
    steps, seconds = (variant.mean_cost(name) for name in ("steps", "seconds"))
    return [score, None if steps is None else f"{steps:.0f}", None if seconds is None else f"{seconds:.1f} s"]


def _span(interval: tuple[float, float] | None, digits: int) -> str | None:
    return None if interval is None else f"{interval[0]:+.{digits}f} to {interval[1]:+.{digits}f}"


def _named(c: Comparison) -> str:
    """Return the variant with its role, unless its name includes the role."""
    return c.variant if c.role is Role.ABLATION or ":" in c.variant else f"{c.role}: {c.variant}"


def _draw(shown: list[Comparison], verdict: Verdict) -> Figure:
    unit, digits, margin = verdict.design.unit, verdict.design.decimals, verdict.design.margin
    rows: list[dict[str, Any]] = []
    for c in shown:
        d = c.difference
        left, right = c.images or d.interval.ends
        position = _ABOVE if d.low > 0 else _BELOW if d.high < 0 else _AROUND
        rows.append({
            "variant": _named(c), "short": style.brief(_named(c), 46), "difference": d.mean,
            "said": position,
            "low": d.low, "high": d.high, "left": left, "right": right,
            "interval": _span(d.bounds, digits), "inputs": _span(c.images, digits) or "",
        })  # fmt: skip
    title = f"{verdict.design.metric.name} minus the baseline's, {unit}"
    y = alt.Y("variant:N", sort=[_named(c) for c in shown], axis=None)
    tips = [
        alt.Tooltip("variant:N"), alt.Tooltip("difference:Q", title=unit, format=f"+.{digits}f"),
        alt.Tooltip("interval:N", title="95 % interval"), alt.Tooltip("inputs:N", title="over inputs too"),
    ]  # fmt: skip
    colours, shapes = (
        style.named({name: each[i] for name, each in _COLOURS_AND_SHAPES.items()}) for i in range(2)
    )
    base = style.chart("variants").encode(y=y, tooltip=tips, color=alt.Color("said:N", scale=colours))
    band = (
        style.chart("margin")
        .mark_rect(color=style.GREY, opacity=0.18)
        .encode(x=alt.X("low:Q", title=title, axis=alt.Axis(tickCount=6)), x2="high:Q")
    )
    zero = style.chart("none").mark_rule().encode(x=alt.X("difference:Q", title=title))
    thin = base.mark_rule(strokeWidth=1).encode(x=alt.X("left:Q", title=title), x2="right:Q")
    thick = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    points = base.mark_point(size=75).encode(
        x=alt.X("difference:Q", title=title), shape=alt.Shape("said:N", scale=shapes)
    )
    # The name stands above its own bar: long ones take no room from the axis.
    names = (
        style.chart("variants").mark_text(align="left", dy=-15).encode(x=alt.value(2), y=y, text="short:N")
    )
    return Figure(
        charts=[style.layer(band, zero, thin, thick, points, names, height=46 * len(shown))],
        data={
            "variants": rows,
            "margin": [{"low": -margin, "high": margin}],
            "none": [{"difference": 0}],
        },
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """A site, or a layer of a decoder.

    Attributes:
        name: Its name within the stage.
        kind: The type of its module, the kind of the layer, or an empty text.
        colour: The colour of the kind. Empty without a module.
        about: Its whole name and module in words.
    """

    name: str
    kind: str
    colour: str
    about: str


@dataclass(frozen=True, kw_only=True)
class Network:
    """A model with its modules.

    Attributes:
        title: Whose modules they are, in a sentence.
        stages: The places in each stage, in their order.
    """

    title: str
    stages: Mapping[str, Sequence[Place]]


def network(search: SearchData) -> Network | None:
    """Return the network of the winner, or else of the best trial. None if that has no modules.

    Sites are those that trials used, and the layers of a decoder all that it has.
    """
    whose, config = _chosen(search)
    if config is None or not config.model.placement:
        return None
    model = config.model
    marks = style.colours_and_shapes(spec.name for spec in model.placement.values())
    colours = {kind: colour for kind, (colour, _) in marks.items()}
    if ":" not in model.backbone and model.kinds:
        layers = {
            str(i): [Place(name="", kind=kind, colour=colours.get(kind, ""), about=f"layer {i}: {kind}")]
            for i, kind in enumerate(model.kinds, 1)
        }
        return Network(title=f"{whose}: the kind of each layer.", stages=layers)
    alike = [t.config.model for t in search.trials if t.config.model.backbone == model.backbone]
    sites = {site for other in alike for site in other.placement}
    stages: dict[str, list[Place]] = {}
    for site in sorted(sites | model.placement.keys(), key=_natural_order):
        stage, _, name = site.partition(".")
        spec = model.placement.get(site)
        kind = spec.name if spec else ""
        place = Place(name=name, kind=kind, colour=colours.get(kind, ""), about=f"{site}: {spec or 'none'}")
        stages.setdefault(stage, []).append(place)
    return Network(title=f"{whose}: its modules among the sites that trials used.", stages=stages)


def _chosen(search: SearchData) -> tuple[str, TrialConfig | None]:
    verdict = search.verdicts[-1] if search.verdicts else None
    if verdict and verdict.complete and verdict.leader is not None:
        whose = "The winner" if verdict.winner else "The leading finalist, which is not shown to be better"
        return whose, verdict.leader.config
    if search.best is None:
        return "", None
    return f"The best trial, {search.best.number}, not confirmed", search.best.config


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `block10` after `block9`, and a branch before its block."""
    parts = []
    for part in name.split("."):
        letters = part.rstrip("0123456789")
        number = part[len(letters) :]
        parts.append((0, int(number) if number else -1, letters))
    # `stage1.block2.branch` comes before `stage1.block2`: the longer one is inside.
    return [*parts, (1, 0, "")]
