"""Training loss and accuracy of the best trial and of the best baseline."""

from itertools import accumulate
from math import isfinite, nan
from typing import Any

import altair as alt

from automl.report import style
from automl.report.figure import Figure
from automl.report.plot import Plot, Table, absent
from automl.report.read import SearchData
from search.record import Metrics

NAME, TITLE = "training", "Training loss"
LOSS, ACCURACY = "train_loss", "train_accuracy"
EPOCH_MEAN, RUNNING_MEAN = "mean of the epoch", "running mean"


def training_curves(search: SearchData) -> Plot:
    """Plot loss per epoch, accuracy per epoch, and the mean accuracy of all steps so far."""
    colours: dict[str, str] = {}
    losses: list[dict[str, Any]] = []
    accuracies: list[dict[str, Any]] = []
    table: list[list[str | int | float | None]] = []
    for trial, name, colour in (
        (search.baseline, "best without attention", style.VERMILION),
        (search.best, "best", style.BLUE),
    ):
        history = [m for m in trial.history if isfinite(m.get(LOSS, nan))] if trial else []
        if trial is None or not history:
            continue
        label = f"{name} (trial {trial.number})"
        colours[label] = colour
        losses += [_row(label, m["epoch"], m[LOSS]) for m in history]
        known = [m for m in history if ACCURACY in m]
        means = running_means(known)
        for metrics, mean in zip(known, means, strict=True):
            for kind, value in ((EPOCH_MEAN, metrics[ACCURACY]), (RUNNING_MEAN, mean)):
                accuracies.append({**_row(label, metrics["epoch"], 100 * value), "mean": kind})
        last = history[-1]
        accuracy = 100 * last[ACCURACY] if ACCURACY in last else None
        table.append([label, last["epoch"], last[LOSS], accuracy, 100 * means[-1] if means else None])
    if not colours:
        return absent(NAME, TITLE, "No trial has reported a metric train_loss yet.")
    charts = [_chart("training_loss", "training loss", colours)]
    if accuracies:
        dash = alt.StrokeDash(
            "mean:N",
            scale=alt.Scale(domain=[RUNNING_MEAN, EPOCH_MEAN], range=[[1, 0], [2, 3]]),
            legend=alt.Legend(symbolType="stroke", columns=2),
        )
        charts.append(
            _chart("training_accuracy", "training accuracy, %", colours).encode(
                strokeDash=dash, detail="mean:N"
            )
        )
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
        name=NAME,
        title=f"{TITLE} and accuracy" if accuracies else TITLE,
        figure=figure,
        says="; ".join(sentences) + ".",
        note=note,
        table=Table(columns=columns, rows=[row[: len(columns)] for row in table]),
    )


def running_means(history: list[Metrics]) -> list[float]:
    """Return the mean accuracy over all steps up to the end of each epoch.

    Epochs count by their steps: the last one of a training at equal time may be a part of one.
    """
    ends = [metrics.get("steps", metrics["epoch"]) for metrics in history]
    steps = [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]
    sums = accumulate(count * metrics[ACCURACY] for count, metrics in zip(steps, history, strict=True))
    return [total / end for total, end in zip(sums, ends, strict=True)]


def _row(label: str, epoch: float, value: float) -> dict[str, Any]:
    return {"way": label, "epoch": epoch, "value": float(f"{value:.5g}")}


def _chart(data: str, title: str, colours: dict[str, str]) -> alt.Chart:
    chart: alt.Chart = (
        alt.Chart(alt.NamedData(data))
        .mark_line(strokeWidth=2, point={"size": 12})
        .encode(
            x=alt.X("epoch:Q", title="epochs of the trial", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False)),
            color=alt.Color("way:N", scale=style.named(colours), legend=alt.Legend(columns=1)),
            tooltip=[
                alt.Tooltip("way:N", title="trial"),
                alt.Tooltip("epoch:Q"),
                alt.Tooltip("value:Q", title=title),
            ],
        )
        .properties(height=style.HEIGHT)
    )
    return chart
