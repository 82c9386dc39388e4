"""Results of a search in texts: the mean reciprocal rank with its interval, ranks, some hits and misses."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import numpy as np
from numpy.typing import NDArray

from automl.base.units import pluralize
from automl.report import style
from automl.report.figure import Cell, Figure, Plot, Section, Table
from automl.report.read import Answered, SearchData, answered
from automl.storage.trial_files import Example

BINS = ((1, 1), (2, 5), (6, 10), (11, 50), (51, 100), (101, None))  # first and last rank
DRAWS = 2000  # of the bootstrap
FEW = 5  # seeds, below which a bootstrap takes their spread for too small
LONGEST = 240  # characters of a query in a table


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """Reciprocal ranks of the trainings of the configuration called `what`, float `(seeds, queries)`."""

    what: str
    reciprocal: NDArray[np.float64]
    examples: Sequence[Example]

    @property
    def ranks(self) -> NDArray[np.float64]:
        """Return the ranks of all trainings, from 1; infinity if there is no answer."""
        with np.errstate(divide="ignore"):
            return np.rint(1 / self.reciprocal)

    @property
    def fractions(self) -> list[float]:
        """Return the fraction of ranks in each of BINS."""
        ranks = self.ranks
        return [float(((ranks >= low) & (ranks <= (high or np.inf))).mean()) for low, high in BINS]


def ranks(search: SearchData) -> list[Section]:
    """Return the section with ranks. There is none for other tasks, or before a trial has completed."""
    answers = answered(search)
    groups = [ranked for group in answers.of if (ranked := _ranked(group)) is not None]
    if not groups:
        return []
    lead = f"{answers.lead} A query's rank is the place of the function that it is for, from 1 on."
    plots = [_ranks(groups), *_examples(groups[0])]
    return [Section(id="ranks", title="What was found", lead=lead, plots=plots)]


def _ranked(group: Answered) -> _Ranked | None:
    """Return the ranks of a group, or None without queries or if trainings had different ones."""
    values = [training.values for training in group.trainings]
    if not group.trainings[0].examples or len({len(each) for each in values}) > 1:
        return None
    return _Ranked(what=group.what, reciprocal=np.stack(values), examples=group.trainings[0].examples)


def interval(values: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean of `values` (seeds, queries), from a two-way bootstrap.

    Each draw takes seeds and, independently, queries anew: every training answers the same queries, so that
    more seeds do not make up for few queries. With one seed it is the interval over queries alone. The same
    values have the same interval.
    """
    seeds, queries = values.shape
    generator = np.random.default_rng(0)
    means = np.empty(DRAWS)
    for draw in range(DRAWS):
        weights = np.bincount(generator.integers(0, seeds, seeds), minlength=seeds) / seeds
        means[draw] = (weights @ values)[generator.integers(0, queries, queries)].mean()
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _ranks(groups: Sequence[_Ranked]) -> Plot:
    rows: list[list[Cell]] = []
    sentences, few = [], []
    for group in groups:
        seeds, queries = group.reciprocal.shape
        low, high = interval(group.reciprocal)
        mean, middle = float(group.reciprocal.mean()), float(np.median(group.ranks))
        known = middle if np.isfinite(middle) else None
        rows.append([group.what, seeds, queries, mean, low, high, known, *group.fractions])
        over = "queries" if seeds == 1 else f"queries and {pluralize(seeds, 'seeds')}"
        sentences.append(f"{group.what}: MRR {mean:.4f} (95 % CI {low:.4f} to {high:.4f} over {over})")
        if 1 < seeds < FEW:
            few.append(seeds)
    warning = f"From {pluralize(min(few), 'seeds')} the spread over seeds is underestimated." if few else ""
    return Plot(
        name="ranks",
        title="Ranks",
        figure=_draw(groups),
        says="; ".join(sentences) + ".",
        note=(
            "MRR is the mean over queries of 1 / rank. Intervals are of a bootstrap that draws queries anew, "
            "and seeds, where there are several."
        ),
        warnings=[warning] if warning else [],
        table=Table(
            columns=[
                "model", "seeds", "queries", "MRR", "95 % from", "to", "median rank",
                *(f"rank {_bin(*edges)}" for edges in BINS),
            ],
            rows=rows,
        ),
    )  # fmt: skip


def _bin(low: int, high: int | None) -> str:
    return str(low) if low == high else f"{low}+" if high is None else f"{low}–{high}"


def _draw(groups: Sequence[_Ranked]) -> Figure:
    whose = ("best", "baseline")[: len(groups)]
    names = [_bin(*edges) for edges in BINS]
    colours = dict(zip(whose, (style.BLUE, style.GREY), strict=False))
    rows = [
        {"rank": name, "of": of, "share": round(fraction, 5), "place": position}
        for of, group in zip(whose, groups, strict=True)
        for position, (name, fraction) in enumerate(zip(names, group.fractions, strict=True))
    ]
    bars = style.chart("ranks").mark_bar().encode(
            x=alt.X("rank:N", sort=names, title="rank", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("of:N", sort=list(whose)),
            y=alt.Y("share:Q", title="share of the queries", axis=alt.Axis(format="%", tickCount=5)),
            color=alt.Color("of:N", scale=style.named(colours)),
            tooltip=["rank:N", "of:N", alt.Tooltip("share:Q", format=".1%")],
        )  # fmt: skip
    return Figure(charts=[style.layer(bars, height=style.HEIGHT)], data={"ranks": rows})


def _examples(best: _Ranked) -> list[Plot]:
    """List queries whose function was first, and queries whose was not, of the first training."""
    hits = [e for e in best.examples if e.rank == 1]
    misses = sorted((e for e in best.examples if e.rank > 1), key=lambda e: e.rank)
    plots = []
    if hits:
        says = f"{pluralize(len(hits), 'examples')} of queries that found their function first."
        rows: list[list[Cell]] = [[_brief(e.query), _brief(e.wanted)] for e in hits]
        table = Table(columns=["query", "function"], rows=rows)
        plots.append(Plot(name="hits", title="Hits", figure=None, says=says, table=table))
    if misses:
        says = (
            f"{pluralize(len(misses), 'examples')} of queries that found another function first, from near "
            f"misses to the worst."
        )
        rows = [[_brief(e.query), _brief(e.wanted), e.rank, _brief(e.first)] for e in misses]
        table = Table(columns=["query", "wanted", "rank", "came first"], rows=rows)
        plots.append(Plot(name="misses", title="Misses", figure=None, says=says, table=table))
    return plots


def _brief(text: str) -> str:
    """Return the text in one line. A long text loses its end."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
