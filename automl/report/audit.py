"""Rung audit: rank correlation of scores at the rungs with final scores, by type.

Where it is low, pruned trials may have been late bloomers. Only survivors have a final score;
they resemble each other more than all trials do, which makes the correlation lower than it would be of all.
"""

import math
from dataclasses import dataclass
from itertools import cycle

import altair as alt
from scipy.stats import spearmanr

from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import Figure, Plot, Table, absent
from automl.report.read import SearchData
from search.record import State, TrialRecord

NAME, TITLE = "audit", "Rung audit"
EVERY = "all"

LOW = 0.3  # the rank correlation below which the report warns
ENOUGH = 5  # trials that such a warning needs


@dataclass(frozen=True, kw_only=True)
class Check:
    """Correlation of scores at one rung with final scores, for one type.

    Attributes:
        kind: The type, or `all`.
        milestone: The epochs of the rung.
        correlation: The rank correlation, or None with too few trials or equal scores.
        count: The number of finished trials.
        pruned: The number of trials of the type that ended at this rung.
    """

    kind: str
    milestone: float
    correlation: float | None
    count: int
    pruned: int

    @property
    def doubtful(self) -> bool:
        is_low = self.correlation is not None and self.correlation < LOW
        return is_low and self.count >= ENOUGH and self.pruned > 0


def checks(search: SearchData) -> list[Check]:
    """Return a check of all trials and of each type. A trial with several types counts for each."""
    kinds = [EVERY, *style.order({kind for trial in search.trials for kind in trial.types})]

    def of(trials: list[TrialRecord], kind: str) -> list[TrialRecord]:
        return [trial for trial in trials if kind == EVERY or kind in trial.types]

    stopped = [trial for trial in search.trials if trial.state is State.PRUNED]
    result = []
    for kind in kinds:
        for i, milestone in enumerate(search.milestones):
            pairs = [
                (early, search.score(trial))
                for trial in of(search.done, kind)
                if (early := search.at(trial, milestone)) is not None
            ]
            pruned = sum(search.rung(trial) == i for trial in of(stopped, kind))
            result.append(
                Check(
                    kind=kind, milestone=milestone, correlation=_rank(pairs), count=len(pairs), pruned=pruned
                )
            )
    return result


def _rank(pairs: list[tuple[float, float]]) -> float | None:
    # Of three trials, one order in six is perfect; fewer say nothing at all.
    if len(pairs) < 3 or len({a for a, _ in pairs}) < 2 or len({b for _, b in pairs}) < 2:
        return None
    value = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return value if math.isfinite(value) else None


def audit(search: SearchData) -> Plot:
    """Plot the checks as points on a line from -1 to 1."""
    if not search.milestones:
        return absent(
            NAME,
            TITLE,
            f"Nothing was pruned: there are no rungs below {pluralize(search.plan.budget, 'epochs')}.",
        )
    counts = checks(search)
    table = Table(
        columns=["type", "rung, epochs", "rank correlation", "finished trials", "pruned here"],
        rows=[[c.kind, c.milestone, c.correlation, c.count, c.pruned] for c in counts],
    )
    shown = [check for check in counts if check.correlation is not None]
    if not shown:
        return Plot(
            name=NAME, title=TITLE, figure=None, table=table,
            says=(
                f"Too few trials have completed to tell ({len(search.done)}); it takes three with "
                f"different scores."
            ),
        )  # fmt: skip
    overall = [c for c in shown if c.kind == EVERY]
    says = "Over all types: " + "; ".join(
        f"{c.correlation:.2f} at {pluralize(c.milestone, 'epochs')} (n={c.count}, {c.pruned} pruned there)"
        for c in overall
    )
    warnings = [
        f"{'All types together' if c.kind == EVERY else c.kind}: the score at "
        f"{pluralize(c.milestone, 'epochs')} says little about the final one (rank correlation "
        f"{c.correlation:.2f}, n={c.count}), and {c.pruned} "
        f"{'was' if c.pruned == 1 else 'were'} pruned there: late bloomers may have been pruned."
        for c in counts
        if c.doubtful
    ]
    return Plot(
        name=NAME, title=TITLE, figure=_draw(search, counts), says=says + ".", warnings=warnings, table=table,
        note=(
            f"1: the order at the rung is the final order; 0: no correlation. In the grey part, below {LOW}, "
            f"pruning is little better than random. Only survivors have a final score, which makes the "
            f"correlation lower than among all trials."
        ),
    )  # fmt: skip


def _draw(search: SearchData, checks: list[Check]) -> Figure:
    kinds = list(dict.fromkeys(check.kind for check in checks))
    most = {kind: max(c.count for c in checks if c.kind == kind) for kind in kinds}
    labels = {kind: f"{kind} (n={most[kind]})" for kind in kinds}
    rungs = [f"rung at {pluralize(milestone, 'epochs')}" for milestone in search.milestones]
    rows = [
        {"type": labels[c.kind], "rung": rungs[search.milestones.index(c.milestone)],
         "rank": round(c.correlation, 3), "trials": c.count, "pruned": c.pruned}
        for c in checks
        if c.correlation is not None
    ]  # fmt: skip
    colours = cycle([style.ORANGE, style.BLUE, style.GREEN, style.PURPLE])
    shapes = cycle(["circle", "square", "triangle-up", "diamond"])
    axis = alt.Axis(values=[-1, -0.5, 0, 0.5, 1])
    title = f"rank correlation with the final {style.brief(search.metric, 20)}"
    x = alt.X("rank:Q", title=title, axis=axis, scale=alt.Scale(domain=[-1.05, 1.05], nice=False))
    points = style.chart("checks").mark_point(size=60).encode(
        x=x,
        y=alt.Y("type:N", sort=list(labels.values()), title=None,
                scale=alt.Scale(domain=list(labels.values()))),
        color=alt.Color("rung:N", scale=style.named(dict(zip(rungs, colours, strict=False)))),
        shape=alt.Shape("rung:N", scale=style.named(dict(zip(rungs, shapes, strict=False)))),
        tooltip=[
            alt.Tooltip("type:N"), alt.Tooltip("rung:N"),
            alt.Tooltip("rank:Q", title="rank correlation", format="+.2f"),
            alt.Tooltip("trials:Q", title="finished trials"),
            alt.Tooltip("pruned:Q", title="pruned here"),
        ],
    )  # fmt: skip
    low = style.chart("low").mark_rect(color=style.GREY, opacity=0.18).encode(x=x, x2="to:Q")
    zero = style.chart("uncorrelated").mark_rule(opacity=0.5).encode(x=x)
    return Figure(
        charts=[style.layer(points, low, zero, height=22 * len(kinds) + 8)],
        data={"checks": rows, "low": [{"rank": -1.05, "to": LOW}], "uncorrelated": [{"rank": 0}]},
    )
