"""The metric over time, latency, parameters and MACs, each with its Pareto front."""

from dataclasses import replace
from typing import Any

import altair as alt

from automl.base.units import format_count
from automl.callbacks.retention import NOISE, front
from automl.report import style
from automl.report.figure import ZOOM, Cell, Chart, Figure, Plot, Table, absent
from automl.report.read import SearchData
from automl.report.style import TRIALS, pointer_selection, source
from search.record import State, TrialRecord

NAME, TITLE = "costs", "What it costs"

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
    measured = [trial for trial in search.done if cost in trial.profile]
    plan = replace(search.plan, objectives=[search.metric, cost])
    return sorted(front(measured, plan), key=lambda trial: trial.profile[cost])


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
    if len(search.plan.objectives) > 1:
        whole = front((trial for trial in search.done), search.plan)
        numbers = ", ".join(str(record.number) for record in whole[:40])
        note += f" On the front of {', '.join(search.plan.objectives)} together: trials {numbers}."
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
