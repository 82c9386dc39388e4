"""Results by class: recall, precision and F1 of the best model beside the baseline, and its confusions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import altair as alt
import numpy as np

from automl.confirm.protocol import CONFIRM_FOLDER, study_name
from automl.report import style
from automl.report.confirmation import ReportedVerdict
from automl.report.figure import Figure
from automl.report.page import Section
from automl.report.plot import Cell, Plot, Table, absent
from automl.report.read import Search, Trial
from automl.storage.answers import read_answers
from automl.storage.storage import Storage
from search.record import State
from search.score_card import ScoreCard
from search.study import STUDY_FILE, read_records

MOST, WORST = 20, 10  # classes of a figure; and those of the lowest F1 that are shown of more
PAIRS = 10  # the most confused ones that are listed


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """The answers of one model, or of several trainings of it together. what: its name in words."""

    what: str
    card: ScoreCard


def per_class(search: Search) -> list[Section]:
    """The section of the latest confirmation, on the test split, or else of the search, on validation.

    No section where there are no answers to go by: of a task without classes, or before a trial is done.
    """
    found = _confirmed(search, search.verdicts[-1]) if search.verdicts else []
    split = "test"
    if not found:
        found, split = _searched(search), "validation"
    if not found:
        return []
    seeds = "; all trainings of an arm are counted together" if split == "test" else ""
    return [
        Section(
            id="classes",
            title="By class",
            lead=f"Of {' and '.join(one.what for one in found)}, on the {split} split{seeds}.",
            plots=[_classes(found), _confusions(found[0])],
        )
    ]


def _searched(search: Search) -> list[_Scored]:
    """The best trial of the search, and the best baseline."""
    found: list[tuple[str, Trial]] = []
    for what, trial in (("best", search.best), ("best baseline", search.baseline)):
        if trial is None or any(trial is other for _, other in found):
            continue
        found.append((what, trial))
    cards = [(what, trial, _card([search.metadata.location / trial.record.folder])) for what, trial in found]
    return [
        _Scored(what=f"the {what} trial, {trial.number}: {trial.where}", card=card)
        for what, trial, card in cards
        if card is not None
    ]


def _confirmed(search: Search, verdict: ReportedVerdict) -> list[_Scored]:
    """The leading finalist of a confirmation, and the baseline."""
    number = verdict.confirmation
    place = search.folder / (CONFIRM_FOLDER if number == 1 else f"{CONFIRM_FOLDER}-{number}")
    if not (place / STUDY_FILE).exists():
        return []
    records = read_records(place, study_name(place, search.metadata))
    baseline = next((arm.name for arm in verdict.arms if arm.role == "baseline"), "")
    found = []
    for what, arm in (("the leading finalist", verdict.finalist), ("the tuned baseline", baseline)):
        if not arm:
            continue
        seeds = next((set(other.scores) for other in verdict.arms if other.name == arm), set())
        folders = [
            search.metadata.location / place.name / record.folder
            for record in records
            if record.arm == arm and record.state is State.COMPLETE and str(record.config.seed) in seeds
        ]
        card = _card(folders)
        if card is not None:
            found.append(_Scored(what=f"{what}, {arm}", card=card))
    return found


def _card(folders: Sequence[Storage]) -> ScoreCard | None:
    """Of the answers in all of these folders together; None where one has none."""
    answers = [read_answers(folder) for folder in folders]
    cards = [each.card for each in answers if each is not None]
    if not cards or len(cards) < len(folders):
        return None
    whole = reduce(np.add, [card.matrix for card in cards])
    return ScoreCard(labels=cards[0].labels, matrix=whole)


def _classes(found: Sequence[_Scored]) -> Plot:
    best, *others = found
    card = best.card
    many = len(card.labels) > MOST
    shown = card.worst(WORST if many else MOST)
    figure = _draw_classes(found, shown)
    columns = ["class", "inputs", "recall", "precision", "F1", *(["F1 of the baseline"] if others else [])]
    rows: list[list[Cell]] = [
        [
            card.labels[i],
            int(card.counts[i]),
            *(_cell(of[i]) for of in (card.recall, card.precision, card.f1)),
            *(_cell(other.card.f1[i]) for other in others),
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
            f"The lowest F1 has {card.labels[first]}, {card.f1[first]:.3f}: of its {int(card.counts[first])} "
            f"inputs {card.recall[first]:.0%} are found."
        ),
        note=(
            "F1 is the harmonic mean of recall, the share of a class's inputs that are found, and precision, "
            "the share of such answers that are right."
            + (f" There are no inputs of {', '.join(empty[:WORST])}." if empty else "")
        ),
        table=Table(columns=columns, rows=rows),
    )


def _draw_classes(found: Sequence[_Scored], shown: Sequence[int]) -> Figure:
    names = [found[0].card.labels[i] for i in shown]
    whose = ("best", "baseline")[: len(found)]
    rows = [
        {
            "class": one.card.labels[i],
            "of": of,
            "f1": _cell(one.card.f1[i]),
            "inputs": int(one.card.counts[i]),
        }
        for of, one in zip(whose, found, strict=True)
        for i in shown
    ]
    base = alt.Chart(alt.NamedData("classes")).encode(
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


def _confusions(best: _Scored) -> Plot:
    """The confusion matrix of few classes, and the most confused pairs."""
    name, title, card = "confusions", "Confusions", best.card
    pairs = card.confusions()
    if not pairs:
        return absent(name, title, f"Every answer of {best.what} is right.")
    counts = dict(zip(card.labels, card.counts.tolist(), strict=True))
    table = Table(
        columns=["true", "answered", "times", "of its inputs"],
        rows=[[true, said, times, times / counts[true]] for true, said, times in pairs[:PAIRS]],
    )
    true, said, times = pairs[0]
    says = f"Most often {true} is taken for {said}: {times} of {counts[true]} times."
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
    shares = 100 * card.matrix / np.maximum(1, card.counts)[:, None]
    rows = [
        {
            "true": labels[i],
            "answered": labels[j],
            "times": int(card.matrix[i, j]),
            "share": float(shares[i, j]),
            "shown": f"{shares[i, j]:.0f}" if card.matrix[i, j] else "",
            "dark": bool(shares[i, j] > 100 * style.DEEP),
        }
        for i in range(len(labels))
        for j in range(len(labels))
    ]
    scale = alt.Scale(domain=labels)
    base = alt.Chart(alt.NamedData("confusions")).encode(
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
