"""Learning curves with the rungs or over time, and the metric over latency, parameters and MACs."""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from automl.base.units import format_count, pluralize
from automl.report import style
from automl.report.figure import ZOOM, Cell, Chart, Figure, Plot, Table, absent
from automl.report.read import SearchData, variant_trainings
from automl.report.style import TRIALS, pointer_selection, source
from search.record import State, TrialRecord
from search.trial_scheduler import RESOURCE

CROSS = "M-1,-1L1,1M-1,1L1,-1"
CURVES = 120  # of a kind that are drawn at most
POINTS = 40  # of a curve


def curves(search: SearchData) -> Plot:
    """Plot the metric over the resource: completed and pruned trials, the best one and the best baseline."""
    title = "Learning curves"
    running = [t for t in search.trials if t.state is State.RUNNING and t.history]
    ways = {
        f"trained to the end ({len(search.done)})": (search.done, style.SKY),
        f"pruned at a rung ({len(search.pruned)})": (search.pruned, style.ORANGE),
        f"still running ({len(running)})": (running, style.PURPLE),
    }
    if not any(trials for trials, _ in ways.values()):
        return absent("curves", title, "No trial has completed an epoch yet.")
    rows = [
        [trial.number, search.where(trial), str(trial.state), trial.resource, search.final(trial)]
        for trial in [search.baseline, search.best]
        if trial is not None
    ]
    left_out = 0
    colours = {label: colour for label, (trials, colour) in ways.items() if trials}
    lines: list[dict[str, Any]] = []
    for label in colours:
        trials = ways[label][0]
        drawn = _spread(search, trials)
        left_out += len(trials) - len(drawn)
        lines += [row for trial in drawn for row in _rows(search, trial, label)]
    seen = [row["value"] for row in lines]
    strong = {}
    for trial, colour, name in (
        (search.baseline, style.INK, "best without attention"),
        (search.best, style.BLUE, "best"),
    ):
        if trial is not None:
            label = f"{name} (trial {trial.number})"
            colours[label] = strong[label] = colour
            lines += _rows(search, trial, label)
    figure = Figure(
        charts=[_chart(search, colours, list(strong), seen)],
        data={**source(search), "curves": lines, "rungs": [{"epoch": m} for m in search.milestones]},
        zoom=True,
        wide=True,
    )
    sentences = [
        f"{pluralize(len(search.done), 'trials')} completed and "
        f"{pluralize(len(search.pruned), 'were pruned')}"
    ]
    if search.milestones:
        rungs = ", ".join(f"{round(milestone, 2):g}" for milestone in search.milestones)
        sentences.append(f"the rungs stand at {rungs} of {pluralize(search.plan.budget, 'epochs')}")
    for trial, name in ((search.best, "best"), (search.baseline, "best baseline")):
        if trial is not None:
            sentences.append(f"the {name} ended at {search.metric} {search.show(trial)}")
    note = "A cross is where a trial was pruned or stands; dotted lines are rungs. " + ZOOM
    if left_out:
        note += (
            f" {left_out} curves are left out, evenly over the final scores, so that the others can be seen."
        )
    return Plot(
        name="curves", title=title, figure=figure, says="; ".join(sentences) + ".", note=note,
        table=Table(columns=["trial", "what", "state", "epochs", search.plan.metric.label], rows=rows),
    )  # fmt: skip


def _rows(search: SearchData, trial: TrialRecord, label: str) -> list[dict[str, Any]]:
    """Return the curve of a trial as rows of data. `end` marks its last point."""
    curve = _curve(search, trial)
    return [
        {"trial": trial.number, "way": label, "epoch": round(float(x), 3), "value": float(f"{y:.5g}")}
        | ({"end": True} if i == len(curve) - 1 and trial.state is not State.COMPLETE else {})
        for i, (x, y) in enumerate(curve)
    ]


def _chart(
    search: SearchData, colours: dict[str, str], strong: list[str], seen: Sequence[float]
) -> alt.LayerChart:
    most = max(search.plan.budget, max((trial.resource for trial in search.trials), default=0.0))
    equal_time = search.metadata.settings.terms.equal == "time"
    x = alt.X(
        "epoch:Q", title="epochs of the baseline's time" if equal_time else "epochs",
        scale=alt.Scale(domain=[0, most], nice=False),
        axis=alt.Axis(tickMinStep=1 / search.plan.reports, tickCount=8, format="~g"),
    )  # fmt: skip
    domain = style.window(seen, maximize=search.plan.metric.maximize)
    y = alt.Y(
        "value:Q", title=search.plan.metric.label, scale=alt.Scale(domain=domain, zero=False, nice=False)
    )
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, columns=1)
    colour = alt.Color("way:N", scale=style.named(colours), legend=legend)
    best = f"datum.way === {json.dumps(strong[-1] if strong else '')}"
    fields = ["what", "score", "epochs", "state", "kind", "link"]
    base = (
        style.chart("curves")
        .transform_lookup("trial", alt.LookupData(alt.NamedData(TRIALS), key="trial", fields=fields))
        .transform_calculate(strong=f"indexof({json.dumps(strong)}, datum.way) >= 0")
        .encode(x=x, y=y, detail="trial:Q", color=colour)
    )
    thin = base.transform_filter("!datum.strong").mark_line(strokeWidth=1, opacity=0.75, clip=True)
    # Nothing is seen of these; they are wide enough for a pointer.
    wide = (
        base.transform_filter("!datum.strong")
        .mark_line(strokeWidth=9, opacity=0, clip=True)
        .encode(**pointer_selection(search))
    )
    ends = (
        base.transform_filter("datum.end && !datum.strong")
        .mark_point(shape=CROSS, filled=False, strokeWidth=1.5, size=22, clip=True)
        .encode(**pointer_selection(search))
    )
    thick = (
        base.transform_filter("datum.strong")
        .mark_line(strokeWidth=2.8, clip=True)
        .encode(
            strokeDash=alt.condition(best, alt.value([6, 2]), alt.value([1, 0])), **pointer_selection(search)
        )
    )
    rungs = (
        style.chart("rungs")
        .mark_rule(strokeDash=[2, 3], opacity=0.8, clip=True)
        .encode(x=x, tooltip=alt.Tooltip("epoch:Q", title="rung, epochs"))
    )
    return style.layer(thin, rungs, wide, ends, thick, height=260)


def _curve(search: SearchData, trial: TrialRecord) -> NDArray[np.float64]:
    """Return resource and metric of a trial, at most POINTS pairs, the last one included."""
    history = [m for m in trial.history if search.metric in m]
    values: NDArray[np.float64] = np.array(
        [(m[RESOURCE], search.plan.metric.scale * m[search.metric]) for m in history], dtype=float
    ).reshape(-1, 2)
    values = values[np.isfinite(values).all(axis=1)]
    if len(values) > POINTS:
        values = values[np.unique(np.linspace(0, len(values) - 1, POINTS).round().astype(int))]
    return values


def _spread(search: SearchData, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return at most CURVES of the trials, spread evenly over their last scores."""
    if len(trials) <= CURVES:
        return list(trials)
    ranked = sorted(trials, key=lambda trial: search.final(trial) or 0.0)
    return [ranked[i] for i in np.linspace(0, len(ranked) - 1, CURVES).round().astype(int)]


def curves_over_time(search: SearchData) -> Plot:
    """Plot the validation metric of a confirmation over the seconds of training, for all of its seeds."""
    name, title, verdict = "times", "Learning curves over time", search.verdicts[-1]
    metric = f"validation {search.plan.metric.label}"
    lines: list[dict[str, Any]] = []
    rows: list[list[Cell]] = []
    colours: dict[str, str] = {}
    for variant, colour in ((verdict.variants[0].name, style.INK), (verdict.finalist, style.BLUE)):
        trainings = [_over_time(search, each) for each in variant_trainings(search, verdict, variant)]
        if variant is None or not trainings or not all(trainings):
            return absent(name, title, "The trainings of the finalist and of the baseline have no curves.")
        label = style.brief(variant, 46)
        colours[label] = colour
        lines += [{"what": label, "seed": i, **row} for i, each in enumerate(trainings) for row in each]
        ends = np.array([(each[-1]["time"], each[-1]["value"]) for each in trainings]).mean(axis=0)
        rows.append([variant, len(trainings), *ends.tolist()])
    x = alt.X("time:Q", title="seconds of training", scale=alt.Scale(nice=False, zero=True))
    domain = style.window([row["value"] for row in lines], maximize=search.plan.metric.maximize)
    y = alt.Y("value:Q", title=metric, scale=alt.Scale(domain=domain, zero=False, nice=False))
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, columns=1, labelLimit=300)
    hue = alt.Color("what:N", scale=style.named(colours), legend=legend)
    base = style.chart("times").encode(x=x, y=y, color=hue)
    thin = base.mark_line(strokeWidth=1, opacity=0.4, clip=True).encode(detail="seed:Q")
    means = base.transform_aggregate(time="mean(time)", value="mean(value)", groupby=["what", "epoch"])
    thick = means.mark_line(strokeWidth=2.8, clip=True)
    end = style.chart("budget").mark_rule(strokeDash=[4, 3]).encode(x=x)
    rule = "the end of the budget" if verdict.design.equal == "time" else "the end of the baseline"
    return Plot(
        name=name,
        title=title,
        figure=Figure(
            charts=[style.layer(thin, thick, end, height=260)],
            data={"times": lines, "budget": [{"time": rows[0][2]}]},
            zoom=True,
            wide=True,
        ),
        says="; ".join(f"{row[0]}: {row[3]:.4g} after {row[2]:.3g} s" for row in rows)
        + ", means over seeds.",
        note=f"Thin lines are seeds, thick ones means of each epoch. The dashed line is {rule}. {ZOOM}",
        table=Table(columns=["what", "seeds", "seconds", metric], rows=rows),
    )


def _over_time(search: SearchData, trial: TrialRecord) -> list[dict[str, Any]]:
    """Return epochs with seconds and metric, or nothing if one has no times."""
    own = trial.history
    if any("seconds" not in m or search.metric not in m for m in own):
        return []
    ends, scale = accumulate(m["seconds"] for m in own), search.plan.metric.scale
    return [
        {"epoch": m["epoch"], "time": round(end, 3), "value": float(f"{scale * m[search.metric]:.5g}")}
        for m, end in zip(own, ends, strict=True)
    ]


NAME, TITLE = "costs", "What it costs"

# Relative noise of costs that are timed. A smaller difference does not remove a trial from a front.
NOISE = {"latency": 0.02, "time_ratio": 0.02}
COSTS = {
    "time_ratio": "time of an epoch, times the baseline's",
    "latency": "latency of one input, ms",
    "params": "parameters",
    "macs": "MACs of one input",
}


def pareto(search: SearchData, cost: str) -> list[TrialRecord]:
    """Return the finished trials that no other trial beats in both metric and cost, the cheapest first.

    Differences within the noise do not count, nor do trials that may be guessing.
    """
    plan = search.plan
    measured = [trial for trial in search.done if cost in trial.profile and not plan.guesses(trial)]

    def dominates(other: TrialRecord, trial: TrialRecord) -> bool:
        gain, saved = plan.score(other) - plan.score(trial), trial.profile[cost] - other.profile[cost]
        noise = NOISE.get(cost, 0.0) * trial.profile[cost]
        return gain >= 0 and saved >= 0 and (gain > 0 or saved > noise)

    best = [trial for trial in measured if not any(dominates(other, trial) for other in measured)]
    return sorted(best, key=lambda trial: (trial.profile[cost], trial.number))


def costs(search: SearchData) -> Plot:
    """Plot the metric over each cost, with a mark for each finished trial."""
    shown = [cost for cost in COSTS if any(cost in trial.profile for trial in search.done)]
    if not shown:
        return absent(NAME, TITLE, "No trial whose costs were measured has completed yet.")
    fronts = {cost: pareto(search, cost) for cost in shown}
    figure = _draw(search, fronts)
    says = []
    for cost, trials in fronts.items():
        if not trials:
            says.append(f"{_title(cost)}: no trial beats chance, and none is on the front")
            continue
        # Along a front the metric gets better as the cost grows: its ends say how much for how much.
        cheap, best = trials[0], trials[-1]
        span = f"{search.show(cheap)} at {_cost(cheap, cost)}"
        if cheap is not best:
            span = f"from {span} to {search.show(best)} at {_cost(best, cost)}"
        says.append(f"{_title(cost)}: {len(trials)} on the front, {span}")
    note = (
        "Finished trials. The line is the Pareto front: no other trial beats those on it in both, "
        f"where latency and time are known to {NOISE['latency']:.0%}; what may be guessing is on none. Times "
        "of an epoch are ratios to the baseline's, timed in turn on the machine that trained. "
        + ZOOM
        + (" A click on a trial opens its run in MLflow." if search.links else "")
    )
    rows: list[list[Cell]] = [
        [cost, trial.number, search.where(trial), trial.profile[cost], search.score(trial)]
        for cost, trials in fronts.items()
        for trial in trials
    ]
    return Plot(
        name=NAME, title=TITLE, figure=figure, says="; ".join(says) + ".", note=note,
        table=Table(columns=["cost", "trial", "what", "value", search.plan.metric.label], rows=rows),
    )  # fmt: skip


def _cost(trial: TrialRecord, cost: str) -> str:
    value = trial.profile[cost]
    return (
        format_count(value)
        if cost in ("params", "macs")
        else f"{value:.3g}{' ms' if cost == 'latency' else '×'}"
    )


def _title(cost: str) -> str:
    return COSTS[cost].partition(",")[0].partition(" of ")[0]


def _draw(search: SearchData, fronts: dict[str, list[TrialRecord]]) -> Figure:
    kinds = style.by_kind(search, (trial.kind for trial in search.done))
    y = alt.Y("score:Q", title=search.plan.metric.label, scale=alt.Scale(zero=False, padding=8))
    charts: list[Chart] = []
    data: dict[str, list[dict[str, Any]]] = {**source(search)}
    for cost, trials in fronts.items():
        counts = cost in ("params", "macs")
        x = alt.X(
            f"{cost}:Q", title=COSTS[cost], scale=alt.Scale(zero=False, padding=8),
            axis=alt.Axis(tickCount=4, format="~s" if counts else "~g"),
        )  # fmt: skip
        tip = alt.Tooltip(f"{cost}:Q", title=_title(cost), format=".4~s" if counts else ".4~g")
        points = (
            style.chart(TRIALS)
            .transform_filter(f"datum.state === '{State.COMPLETE}' && isValid(datum.{cost})")
            .mark_point(clip=True)
            .encode(x=x, y=y, **kinds, **pointer_selection(search, tip))
        )
        data[f"front-{cost}"] = [
            {cost: trial.profile[cost], "score": search.score(trial)} for trial in trials
        ]
        # Until the next dearer trial, the cheaper one is the best that there is.
        front = (
            style.chart(f"front-{cost}")
            .mark_line(interpolate="step-after", strokeWidth=1.5, color=style.INK, opacity=0.8, clip=True)
            .encode(x=x, y=y)
        )
        charts.append(style.layer(points, front, height=style.HEIGHT))
    return Figure(charts=charts, data=data, zoom=True, wide=True)
