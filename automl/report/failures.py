"""Infeasible and failed trials, grouped by reason."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from automl.report import style
from automl.report.plot import Cell, Table
from automl.report.read import SearchData
from search.record import State

SHOWN = 12  # trials of a group that are named


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Trials with the same reason of failure.

    `text` is the reason of the first one. The others differ at most in numbers.
    """

    state: State
    text: str
    numbers: Sequence[int]
    kinds: Counter[str]


def reasons(search: SearchData) -> list[Reason]:
    """Return the groups of failed trials, the largest first."""
    groups = defaultdict(list)
    for trial in search.trials:
        if trial.state in (State.INFEASIBLE, State.ERROR):
            text = trial.reason or "no reason was given"
            groups[trial.state, re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?[kMGT]?", "#", text)].append(trial)
    texts = [
        Reason(
            state=state,
            text=trials[0].reason or "no reason was given",
            numbers=[trial.number for trial in trials],
            kinds=Counter(kind for trial in trials for kind in trial.types),
        )
        for (state, _), trials in groups.items()
    ]
    return sorted(texts, key=lambda reason: -len(reason.numbers))


def failures(search: SearchData) -> Table:
    """Return the groups of failed trials as a table."""
    rows: list[list[Cell]] = []
    for reason in reasons(search):
        numbers = ", ".join(map(str, reason.numbers[:SHOWN]))
        if len(reason.numbers) > SHOWN:
            numbers += f" and {len(reason.numbers) - SHOWN} more"
        kinds = ", ".join(f"{kind} {reason.kinds[kind]}" for kind in style.order(reason.kinds))
        rows.append([str(reason.state), len(reason.numbers), reason.text, kinds, numbers])
    return Table(columns=["state", "trials", "reason (of the first)", "types", "numbers"], rows=rows)
