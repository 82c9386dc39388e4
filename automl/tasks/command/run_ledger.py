"""`automl ledger`: list and draw a ledger, and compare its head with its first baseline."""

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.base.summary import Summary
from automl.base.units import pluralize
from automl.confirm import evalues
from automl.confirm.ledger import (
    ACCEPTED,
    COMPARISON,
    FACT,
    FINAL,
    TEST,
    VERDICT,
    Decision,
    Head,
    Ledger,
    Program,
)
from automl.confirm.stream import METRIC
from automl.confirm.verdict import read_verdicts
from automl.storage.user_code import check_trusted, command_in
from automl.tasks.command.changes import describe
from automl.tasks.command.referee import run_referee

WIDTH, ROW, PLOT = 700, 40, 10  # of a drawing, of its rows, and where its axis begins [pixels]


@dataclass(frozen=True, kw_only=True, repr=False)
class LedgerResult(Summary):
    """A ledger as it stands. It shows itself in a few lines.

    Attributes:
        metric: The options of its metric.
        heads: The first baseline and the accepted changes, in order. The last one is the head.
        comparisons: All comparisons in order, with the fields of their verdicts. `candidate` is the program.
        tests: How many tests have spent a part of the level, of which the share `left` is left.
        finals: Comparisons of a head with the first baseline on fresh seeds, in order.
    """

    folder: str
    metric: dict[str, Any]
    heads: Sequence[Head]
    comparisons: Sequence[dict[str, Any]]
    tests: int
    left: float
    finals: Sequence[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: to_json(value) for name, value in vars(self).items()}

    def to_csv(self) -> str:
        """Return the comparisons as CSV."""
        text, rows = io.StringIO(), [{**row, "candidate": str(row["candidate"])} for row in self.comparisons]
        writer = csv.DictWriter(text, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        for row in self.comparisons:
            yield row["outcome"], f"{row['name']}: {row['candidate']}{_gain(row)}, {row['trainings']} runs"
        yield "head", str(self.heads[-1].program)
        tests = pluralize(self.tests, "test")
        yield "level", f"{self.left:.0%} left after {tests}, {len(self.heads) - 1} accepted"
        for final in self.finals:
            yield (
                "final",
                f"head {final['head']} against the first baseline: {final['headline']}{_gain(final)}",
            )

    def svg(self) -> str:
        """Draw the accepted changes, each against the head before it, and the last final comparison."""
        rows = [row for row in self.comparisons if row["outcome"] == ACCEPTED] + list(self.finals[-1:])
        rows = [row for row in rows if row["interval"] is not None]
        if not rows:
            raise InputError(f"the ledger in {self.folder} has no accepted change to draw")
        ends = [0.0, *(end for row in rows for end in row["interval"])]
        low, reach, marks = min(ends), (max(ends) - min(ends)) or 1.0, ""
        scale = (WIDTH - PLOT - 20) / reach
        for i, row in enumerate(rows):
            y, (left, middle, right) = (
                ROW * i + 20,
                (
                    PLOT + scale * (end - low)
                    for end in (row["interval"][0], row["difference"], row["interval"][1])
                ),
            )
            text = escape(f"{row['name']}: {row['candidate']}")
            marks += f'<text x="4" y="{y - 8}">{text}</text><path stroke="#0072B2" d="M{left} {y}H{right}"/>'
            marks += f'<circle cx="{middle}" cy="{y}" r="4" fill="#0072B2"/>'
        zero, height = PLOT - scale * low, ROW * len(rows) + 30
        unit = escape(f"{self.metric.get('metric', '')} {self.metric.get('unit', '')}".strip())
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-size="12" '
            f'stroke-width="2">{marks}<path stroke="#808080" d="M{zero} 0V{height - 18}"/>'
            f'<text x="{zero}" y="{height - 4}">0: no gain in {unit}</text></svg>'
        )


def _gain(row: Mapping[str, Any]) -> str:
    interval = "" if row["interval"] is None else " ({:.4g} to {:.4g})".format(*row["interval"])
    return "" if row["difference"] is None else f", {row['difference']:+.4g}{interval}"


def run_ledger(folder: str, *, final: bool = False, trust: bool = False) -> LedgerResult:
    """Read a ledger of `run_referee`.

    Args:
        folder: The folder of the ledger.
        final: Compare its head with its first baseline on ten fresh pairs, and record the result.
        trust: Allow running commands that only the ledger names.

    Returns:
        Its comparisons, its chain of accepted changes, and the level that is left.

    Raises:
        InputError: There is no ledger, or the programs of `final` have changed.
    """
    ledger = Ledger(Path(folder))
    if not (heads := ledger.heads()):
        raise InputError(f"the ledger in {folder} has no comparison yet")
    if final:
        _compare_ends(ledger, heads, trust=trust)
    verdicts, tests = ledger.rows(VERDICT), ledger.rows(TEST)
    return LedgerResult(
        folder=folder,
        metric=ledger.rows(FACT).get(METRIC, {}),
        heads=heads,
        comparisons=[
            {"name": name, **row, "candidate": Program(**row["candidate"])}
            | verdicts.get(name, {**vars(Decision(outcome="not finished")), "index": tests.get(name)})
            | {"head": row["head"]}
            for name, row in ledger.rows(COMPARISON).items()
        ],
        tests=len(tests),
        left=evalues.share_left(len(tests)),
        finals=[_final(Path(folder) / name, head) for name, head in ledger.rows(FINAL).items()],
    )


def _compare_ends(ledger: Ledger, heads: Sequence[Head], *, trust: bool) -> None:
    first, head = heads[0].program, heads[-1].program
    if len(heads) == 1:
        raise InputError(f"the ledger in {ledger.folder} has no accepted change to compare")
    for program in (first, head):
        if Path(program.folder) != Path.cwd():
            raise InputError(f"{program} runs in {program.folder}; run this there")
        if describe(program.command, commit=program.commit).identity != program.identity:
            raise InputError(f"the files of {program} have changed since; restore them first")
    names = [command_in(program.folder, program.command) for program in (first, head)]
    check_trusted("the comparison", names, trust=trust)
    options: dict[str, Any] = {"baseline": first.command, "candidates": head.command}
    if head.commit:
        options = {"command": head.command, "baseline_ref": first.commit, "candidate_refs": head.commit}
    fact = ledger.rows(FACT)[METRIC]
    options |= {key: fact[key] for key in ("metric", "last", "minimize", "unit", "equal")}
    options |= {"metric_file": fact["metric_file"] or None, "evaluate": fact["evaluate"] or None}
    name = f"final-{time.strftime('%Y%m%d-%H%M%S')}"
    ledger.set_once(name, heads[-1].number, FINAL)
    run_referee(**options, protect=list(fact["protect"]), name=name, storage=str(ledger.folder))


def _final(folder: Path, head: int) -> dict[str, Any]:
    """Return the figures of a comparison of a head with the first baseline."""
    value = {"name": folder.name, "head": head, "candidate": f"head {head} against the first baseline"}
    if not (verdicts := read_verdicts(folder)) or not verdicts[-1].comparisons:
        return {**value, "headline": "not finished", "difference": None, "interval": None}
    verdict, shown = verdicts[-1], verdicts[-1].comparisons[0]
    return {
        **value, "headline": verdict.headline, "difference": shown.difference, "interval": shown.interval
    }  # fmt: skip
