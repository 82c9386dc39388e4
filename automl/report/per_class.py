"""Results by class: recall, precision and F1 of the best model beside the baseline, and its confusions."""

from collections.abc import Sequence

import altair as alt
import numpy as np

from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import Cell, Figure, Plot, Section, Table, absent
from automl.report.read import SearchData, answered
from search.class_statistics import ScoreCard

MOST, WORST = 20, 10  # classes of a figure; and those of the lowest F1 that are shown of more
PAIRS = 10  # the most confused ones that are listed


def per_class(search: SearchData) -> list[Section]:
    """Return the section with results by class, if the task has classes and a trial has completed."""
    answers = answered(search)
    groups = [group for group in answers.of if group.trainings[0].labels]
    if not groups:
        return []
    cards = [  # of all trainings of a configuration together
        ScoreCard(labels=of[0].labels, matrix=np.sum([each.card.matrix for each in of], axis=0))
        for of in (group.trainings for group in groups)
    ]
    confusions = _confusions(cards[0], groups[0].what)
    plots = [_classes(cards), confusions]
    return [Section(id="classes", title="By class", lead=answers.lead, plots=plots)]


def _classes(cards: Sequence[ScoreCard]) -> Plot:
    card, *others = cards
    many = len(card.labels) > MOST
    shown = card.worst(WORST if many else MOST)
    figure = _draw_classes(cards, shown)
    columns = ["class", "inputs", "recall", "precision", "F1", *(["F1 of the baseline"] if others else [])]
    rows: list[list[Cell]] = [
        [
            card.labels[i],
            int(card.counts[i]),
            *(_cell(of[i]) for of in (card.recall, card.precision, card.f1)),
            *(_cell(other.f1[i]) for other in others),
        ]
        for i in shown
    ]
    first = shown[0]
    empty = [label for label, count in zip(card.labels, card.counts, strict=True) if not count]
    return Plot(
        name="classes",
        title="F1 by class" + (f", the lowest {len(shown)} of {len(card.labels)}" if many else ""),
        figure=figure,
        says=(
            f"The lowest F1 has {card.labels[first]}, {card.f1[first]:.3f}: of its "
            f"{pluralize(int(card.counts[first]), 'inputs')} {card.recall[first]:.0%} are found."
        ),
        note=(
            "F1 is the harmonic mean of recall, the share of a class's inputs that are found, and precision, "
            "the share of such answers that are right."
            + (f" There are no inputs of {', '.join(empty[:WORST])}." if empty else "")
        ),
        table=Table(columns=columns, rows=rows),
    )


def _draw_classes(cards: Sequence[ScoreCard], shown: Sequence[int]) -> Figure:
    names = [cards[0].labels[i] for i in shown]
    whose = ("best", "baseline")[: len(cards)]
    rows = [
        {"class": card.labels[i], "of": of, "f1": _cell(card.f1[i]), "inputs": int(card.counts[i])}
        for of, card in zip(whose, cards, strict=True)
        for i in shown
    ]
    base = style.chart("classes").encode(
        y=alt.Y("class:N", sort=names, title=None, scale=alt.Scale(domain=names))
    )
    lines = base.mark_line(color=style.GREY, strokeWidth=1.4).encode(x="f1:Q", detail="class:N")
    points = base.mark_point().encode(
        x=alt.X("f1:Q", title="F1", scale=alt.Scale(zero=False)),
        color=alt.Color("of:N", scale=style.named(dict(zip(whose, (style.BLUE, style.GREY), strict=False)))),
        shape=alt.Shape("of:N", scale=alt.Scale(domain=whose, range=["circle", "diamond"][: len(whose)])),
        tooltip=["class:N", "of:N", alt.Tooltip("f1:Q", title="F1", format=".3f"), "inputs:Q"],
    )
    height = 18 * len(shown) + 10
    return Figure(charts=[style.layer(lines, points, height=height)], data={"classes": rows})


def _confusions(card: ScoreCard, what: str) -> Plot:
    """List the most confused pairs of the model called `what`, and plot the matrix of few classes."""
    name, title = "confusions", "Confusions"
    pairs = card.confusions()
    if not pairs:
        return absent(name, title, f"Every answer of {what} is right.")
    counts = dict(zip(card.labels, card.counts.tolist(), strict=True))
    table = Table(
        columns=["true", "answered", "times", "of its inputs"],
        rows=[[true, predicted, times, times / counts[true]] for true, predicted, times in pairs[:PAIRS]],
    )
    true, predicted, times = pairs[0]
    says = f"Most often {true} is taken for {predicted}: {times} of {counts[true]} times."
    if len(card.labels) > MOST:
        return Plot(name=name, title=title, figure=None, says=says, table=table)
    return Plot(
        name=name,
        title=title,
        figure=_draw_matrix(card),
        says=says,
        note="A row for each true class, a column for each answer: the percentage of the row's inputs.",
        table=table,
    )


def _draw_matrix(card: ScoreCard) -> Figure:
    labels = list(card.labels)
    percent = 100 * card.matrix / np.maximum(1, card.counts)[:, None]
    rows = [
        {
            "true": labels[i],
            "answered": labels[j],
            "times": int(card.matrix[i, j]),
            "share": float(percent[i, j]),
            "shown": f"{percent[i, j]:.0f}" if card.matrix[i, j] else "",
            "dark": bool(percent[i, j] > 100 * style.DEEP),
        }
        for i in range(len(labels))
        for j in range(len(labels))
    ]
    scale = alt.Scale(domain=labels)
    base = style.chart("confusions").encode(
        x=alt.X("answered:N", sort=labels, scale=scale, axis=alt.Axis(labelAngle=-90, labelLimit=90)),
        y=alt.Y("true:N", sort=labels, scale=scale, axis=alt.Axis(labelLimit=90)),
        tooltip=[
            "true:N",
            "answered:N",
            "times:Q",
            alt.Tooltip("share:Q", title="% of its inputs", format=".1f"),
        ],
    )
    boxes = base.mark_rect().encode(
        color=alt.Color(
            "share:Q", legend=None, scale=alt.Scale(domain=[0, 100], range=[style.WHITE, style.BLUE])
        )
    )
    shade = alt.condition("datum.dark", alt.value(style.WHITE), alt.value(style.DARK))
    words = base.mark_text().encode(text="shown:N", color=shade)
    return Figure(charts=[style.layer(boxes, words, height=17 * len(labels) + 20)], data={"confusions": rows})


def _cell(value: float) -> Cell:
    return None if np.isnan(value) else float(value)
