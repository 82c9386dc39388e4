"""Learning curves with the rungs, and training loss and accuracy of the best trial and the best baseline."""

import json
from collections.abc import Sequence
from itertools import accumulate
from math import isfinite, nan
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import ZOOM, Cell, Figure, Plot, Table, absent
from automl.report.read import SearchData
from automl.report.style import TRIALS, pointer_selection, source
from search.record import Metrics, State, TrialRecord
from search.trial_scheduler import RESOURCE

CROSS = "M-1,-1L1,1M-1,1L1,-1"
CURVES = 120  # of a kind that are drawn at most
POINTS = 40  # of a curve
LOSS, ACCURACY = "train_loss", "train_accuracy"
EPOCH_MEAN, RUNNING_MEAN = "mean of the epoch", "running mean"


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
        rungs = ", ".join(f"{milestone:g}" for milestone in search.milestones)
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
        scale=alt.Scale(domain=[0, most], nice=False), axis=alt.Axis(tickMinStep=1, tickCount=8, format="d"),
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


def training_curves(search: SearchData) -> Plot:
    """Plot loss per epoch, accuracy per epoch, and the mean accuracy of all steps so far."""
    name, title = "training", "Training loss"
    colours: dict[str, str] = {}
    losses: list[dict[str, Any]] = []
    accuracies: list[dict[str, Any]] = []
    table: list[list[Cell]] = []
    for trial, which, colour in (
        (search.baseline, "best without attention", style.VERMILION),
        (search.best, "best", style.BLUE),
    ):
        history = [m for m in trial.history if isfinite(m.get(LOSS, nan))] if trial else []
        if trial is None or not history:
            continue
        label = f"{which} (trial {trial.number})"
        colours[label] = colour
        losses += [_training_row(label, m["epoch"], m[LOSS]) for m in history]
        known = [m for m in history if ACCURACY in m]
        means = running_means(known)
        for metrics, mean in zip(known, means, strict=True):
            for kind, value in ((EPOCH_MEAN, metrics[ACCURACY]), (RUNNING_MEAN, mean)):
                accuracies.append({**_training_row(label, metrics["epoch"], 100 * value), "mean": kind})
        last = history[-1]
        accuracy = 100 * last[ACCURACY] if ACCURACY in last else None
        table.append([label, last["epoch"], last[LOSS], accuracy, 100 * means[-1] if means else None])
    if not colours:
        return absent(name, title, "No trial has reported a metric train_loss yet.")
    charts = [_training_chart("training_loss", "training loss", colours)]
    if accuracies:
        dash = alt.StrokeDash(
            "mean:N",
            scale=alt.Scale(domain=[RUNNING_MEAN, EPOCH_MEAN], range=[[1, 0], [2, 3]]),
            legend=alt.Legend(symbolType="stroke", columns=2),
        )
        chart = _training_chart("training_accuracy", "training accuracy, %", colours)
        charts.append(chart.encode(strokeDash=dash, detail="mean:N"))
    figure = Figure(
        charts=charts,
        data={"training_loss": losses, **({"training_accuracy": accuracies} if accuracies else {})},
    )
    sentences = [
        f"{label}: loss {loss:.4g}"
        + ("" if mean is None else f", accuracy {accuracy:.4g} % in the last epoch and {mean:.4g} % over all")
        for label, _, loss, accuracy, mean in table
    ]
    note = "Measured on the batches of training, while the weights change."
    columns = ["trial", "epochs", "loss"]
    if accuracies:
        note += " Accuracies of mixed images are against the label with the larger share."
        columns += ["accuracy, %", "running mean of the accuracy, %"]
    return Plot(
        name=name,
        title=f"{title} and accuracy" if accuracies else title,
        figure=figure,
        says="; ".join(sentences) + ".",
        note=note,
        table=Table(columns=columns, rows=[row[: len(columns)] for row in table]),
    )


def running_means(history: list[Metrics]) -> list[float]:
    """Return the mean accuracy over all steps up to the end of each epoch, which may be a part of one."""
    ends = [metrics.get("steps", metrics["epoch"]) for metrics in history]
    steps = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    sums = accumulate(count * metrics[ACCURACY] for count, metrics in zip(steps, history, strict=True))
    return [total / end for total, end in zip(sums, ends, strict=True)]


def _training_row(label: str, epoch: float, value: float) -> dict[str, Any]:
    return {"way": label, "epoch": epoch, "value": float(f"{value:.5g}")}


def _training_chart(data: str, title: str, colours: dict[str, str]) -> alt.Chart:
    tips = [
        alt.Tooltip("way:N", title="trial"), alt.Tooltip("epoch:Q"), alt.Tooltip("value:Q", title=title),
    ]  # fmt: skip
    lines = style.chart(data).mark_line(strokeWidth=2, point={"size": 12})
    chart: alt.Chart = lines.properties(height=style.HEIGHT).encode(
        x=alt.X("epoch:Q", title="epochs of the trial", axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
        color=alt.Color("way:N", scale=style.named(colours), legend=alt.Legend(columns=1)),
        tooltip=tips,
    )
    return chart
