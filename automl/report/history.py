"""Optimisation history: the score of each trial, and the best so far."""

from collections.abc import Iterable
from typing import Any

import altair as alt

from automl.config.units import pluralize
from automl.report import style
from automl.report.figure import Figure
from automl.report.plot import Cell, Plot, Table, absent
from automl.report.read import Search, Trial
from automl.report.trials import TRIALS, pointer_selection, scored, source, state
from search.record import Role, State

NAME, TITLE = "history", "Optimisation history"
BEST, PLAIN = "best so far", "best baseline so far"
LEADERS = {BEST: style.BLUE, PLAIN: style.INK}


def records(search: Search, trials: Iterable[Trial]) -> list[tuple[int, float]]:
    """Return number and score of each finished trial that was better than all before it."""
    steps: list[tuple[int, float]] = []
    for trial in trials:
        score = search.score(trial)
        if not steps or search.sign * (score - steps[-1][1]) > 0:
            steps.append((trial.number, score))
    return steps


def history(search: Search) -> Plot:
    """Plot completed and pruned trials by number, with the best completed one so far as a step line."""
    if not search.done and not search.pruned:
        return absent(NAME, TITLE, "No trial has completed or been pruned yet.")
    plain = [trial for trial in search.done if trial.record.role is Role.BASELINE]
    steps = {BEST: records(search, search.done), PLAIN: records(search, plain)}
    last = max(trial.number for trial in search.trials)
    lines: list[dict[str, Any]] = [
        {"line": name, "trial": number, "score": score}
        for name, values in steps.items()
        if values
        for number, score in [*values, (last, values[-1][1])]
    ]
    figure = Figure(
        charts=[_chart(search, last)], data={**source(search), "leaders": lines}, zoom=True, wide=True
    )
    best = steps[BEST]
    says = f"{pluralize(len(search.done), 'completed trial')} and {len(search.pruned)} pruned"
    if best:
        numbers = ", ".join(str(number) for number, _ in best[-8:])
        value = f"{best[-1][1]:.4g} {search.plan.metric.unit}".rstrip()
        says += f"; the best so far changed at trial {numbers}, and is {value}"
    rows: list[list[Cell]] = [[name, *step] for name, values in steps.items() for step in values]
    return Plot(
        name=NAME, title=TITLE, figure=figure, says=says + ".",
        note="A pruned trial is hollow: its score is from when it was pruned, and does not count as best. "
        + ZOOM + (" A click on a trial opens its run in MLflow." if search.links else ""),
        table=Table(columns=["line", "trial", search.label], rows=rows),
    )  # fmt: skip


ZOOM = "Ctrl and the wheel zoom, dragging moves, a double click resets."


def _chart(search: Search, last: int) -> alt.LayerChart:
    scores = scored(search, [*search.done, *search.pruned])
    domain = style.window(
        scores, maximize=search.plan.metric.maximize, part=0.05 if len(scores) >= 40 else 0.0
    )
    kinds = style.by_kind(search, (trial.kind for trial in [*search.done, *search.pruned]), columns=2)
    x = alt.X(
        "trial:Q", title="trial", scale=alt.Scale(domain=[-0.5, last + 0.5], nice=False),
        axis=alt.Axis(format="d", tickMinStep=1, tickCount=8),
    )  # fmt: skip
    y = alt.Y("score:Q", title=search.label, scale=alt.Scale(domain=domain, zero=False, nice=False))
    base = alt.Chart(alt.NamedData(TRIALS)).encode(x=x, y=y, **kinds, **pointer_selection(search))
    pruned = base.transform_filter(state(State.PRUNED)).mark_point(
        filled=False, size=36, strokeWidth=1, clip=True
    )
    done = base.transform_filter(state(State.COMPLETE)).mark_point(clip=True, size=70)
    lines = (
        alt.Chart(alt.NamedData("leaders"))
        .mark_line(interpolate="step-after", strokeWidth=2, clip=True)
        .encode(
            x=x,
            y=y,
            stroke=alt.Stroke("line:N", scale=style.named(LEADERS), legend=alt.Legend(columns=1)),
            strokeDash=alt.StrokeDash(
                "line:N", scale=alt.Scale(domain=list(LEADERS), range=[[1, 0], [5, 3]])
            ),
        )
    )
    return style.layer(lines, pruned, done, height=260)
