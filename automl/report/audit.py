"""Rung audit: rank correlation of scores at the rungs with final scores, by type.

Where it is low, pruned trials may have been late bloomers. Only survivors have a final score;
they resemble each other more than all trials do, which makes the correlation lower than it would be of all.
"""

import math
from dataclasses import dataclass

from scipy.stats import spearmanr

from automl.config.units import counted
from automl.report import style
from automl.report.plot import Plot, Table, absent
from automl.report.read import Search, Trial
from search.record import State

NAME, TITLE = "audit", "Rung audit"
EVERY = "all"

LOW = 0.3  # the rank correlation below which the report warns
ENOUGH = 5  # trials that such a warning needs


@dataclass(frozen=True, kw_only=True)
class Check:
    """A rung of a type. `correlation` is None where too few trials, or equal scores, allow none.

    count: finished trials. pruned: trials of the type that ended at this rung.
    """

    kind: str
    milestone: float
    correlation: float | None
    count: int
    pruned: int

    @property
    def doubtful(self) -> bool:
        return (
            self.correlation is not None
            and self.correlation < LOW
            and self.count >= ENOUGH
            and self.pruned > 0
        )


def checks(search: Search) -> list[Check]:
    """Of all trials, and of those that have a type; a trial with several types counts for each."""
    kinds = [EVERY, *style.order({kind for trial in search.trials for kind in trial.types})]

    def of(trials: list[Trial], kind: str) -> list[Trial]:
        return [trial for trial in trials if kind == EVERY or kind in trial.types]

    stopped = [trial for trial in search.trials if trial.state is State.PRUNED]
    found = []
    for kind in kinds:
        for i, milestone in enumerate(search.milestones):
            pairs = [
                (early, search.score(trial))
                for trial in of(search.done, kind)
                if (early := search.at(trial, milestone)) is not None
            ]
            pruned = sum(search.rung(trial) == i for trial in of(stopped, kind))
            found.append(
                Check(
                    kind=kind, milestone=milestone, correlation=_rank(pairs), count=len(pairs), pruned=pruned
                )
            )
    return found


def _rank(pairs: list[tuple[float, float]]) -> float | None:
    # Of three trials, one order in six is perfect; fewer say nothing at all.
    if len(pairs) < 3 or len({a for a, _ in pairs}) < 2 or len({b for _, b in pairs}) < 2:
        return None
    value = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return value if math.isfinite(value) else None


def audit(search: Search) -> Plot:
    """The checks, as points on a line from -1 to 1."""
    if not search.milestones:
        return absent(
            NAME,
            TITLE,
            f"There are no rungs below {counted(search.plan.budget, 'epoch')}; nothing was pruned.",
        )
    found = checks(search)
    table = Table(
        columns=["type", "rung, epochs", "rank correlation", "finished trials", "pruned here"],
        rows=[[c.kind, c.milestone, c.correlation, c.count, c.pruned] for c in found],
    )
    shown = [check for check in found if check.correlation is not None]
    if not shown:
        return Plot(
            name=NAME, title=TITLE, figure=None, table=table,
            says=(
                f"Too few trials have completed to tell ({len(search.done)}); it takes three with "
                f"different scores."
            ),
        )  # fmt: skip
    kinds = list(dict.fromkeys(check.kind for check in found))
    with style.style():
        figure = style.new(0.85 + 0.24 * len(kinds))
        axes = figure.subplots()
        axes.axvspan(-1, LOW, color="#f3f3f3", zorder=0)
        axes.axvline(0, color=style.GREY, linewidth=0.7)
        looks = [(style.ORANGE, "o"), (style.BLUE, "s"), (style.GREEN, "^"), (style.PURPLE, "D")]
        for i, milestone in enumerate(search.milestones):
            colour, marker = looks[i % len(looks)]
            points = [
                (c.correlation, kinds.index(c.kind))
                for c in shown
                if c.milestone == milestone and c.correlation is not None
            ]
            axes.plot(
                [x for x, _ in points], [y for _, y in points], linestyle="none",
                marker=marker, color=colour, markersize=6, markeredgecolor="white", markeredgewidth=0.5,
                label=f"rung at {counted(milestone, 'epoch')}", zorder=3,
            )  # fmt: skip
        most = {kind: max(c.count for c in found if c.kind == kind) for kind in kinds}
        axes.set_yticks(range(len(kinds)), [f"{kind} (n={most[kind]})" for kind in kinds])
        axes.set_ylim(len(kinds) - 0.5, -0.5)
        axes.set_xlim(-1.06, 1.06)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        axes.set_xlabel(f"rank correlation with the final {style.brief(search.metric, 20)}")
        figure.legend(loc="outside upper left", ncols=2, borderaxespad=0.1)
    overall = [c for c in shown if c.kind == EVERY]
    says = "Over all types: " + "; ".join(
        f"{c.correlation:.2f} at {counted(c.milestone, 'epoch')} (n={c.count}, {c.pruned} pruned there)"
        for c in overall
    )
    warnings = [
        f"{_name(c.kind)}: the score at {counted(c.milestone, 'epoch')} says little about the final one "
        f"(rank correlation {c.correlation:.2f}, n={c.count}), and {c.pruned} "
        f"{'was' if c.pruned == 1 else 'were'} pruned there: late bloomers may have been pruned."
        for c in found
        if c.doubtful
    ]
    return Plot(
        name=NAME, title=TITLE, figure=figure, says=says + ".", warnings=warnings, table=table,
        note=(
            f"1: the order at the rung is the final order; 0: no correlation. In the grey part, below {LOW}, "
            f"pruning is little better than random. Only survivors have a final score, which makes the "
            f"correlation lower than among all trials."
        ),
    )  # fmt: skip


def _name(kind: str) -> str:
    return "All types together" if kind == EVERY else kind
