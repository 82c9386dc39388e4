"""`automl ledger`: list and draw a ledger, and compare its head with its first baseline."""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.base.summary import Summary
from automl.base.units import pluralize
from automl.confirm import evalues
from automl.confirm.ledger import ACCEPTED, Decision, Head, Ledger
from automl.confirm.stream import METRIC
from automl.confirm.verdict import WrittenComparison, WrittenVerdict, read_verdicts
from automl.storage.user_code import check_trusted, command_in
from automl.tasks.command.changes import describe
from automl.tasks.command.referee import run_referee

COLUMNS = ("number", "name", "began", "candidate", "outcome", "screened", "pairs", "test", "level", "e_value",
           "difference", "low", "high", "trainings")  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class LedgerResult(Summary):
    """A ledger as it stands. It shows itself in a few lines.

    Attributes:
        folder: The folder of the ledger.
        metric: The options of its metric.
        heads: The first baseline and the accepted changes, in order. The last one is the head.
        comparisons: All comparisons in order, each with its `verdict`, or None if it has not ended.
        left: The share of the level that is left.
        finals: Comparisons of a head with the first baseline on fresh seeds, in order.
    """

    folder: str
    metric: dict[str, Any]
    heads: Sequence[Head]
    comparisons: Sequence[dict[str, Any]]
    left: float
    finals: Sequence[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: to_json(value) for name, value in vars(self).items()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of plain values for each comparison."""
        for entry in self.comparisons:
            verdict = entry["verdict"] or Decision(outcome="not finished")
            low, high = verdict.interval or (None, None)
            values = {
                **vars(verdict),
                **entry,
                "low": low,
                "high": high,
                "candidate": str(entry["candidate"]),
            }
            values["began"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["began"]))
            yield {name: values[name] for name in COLUMNS}

    def to_csv(self) -> str:
        """Return the comparisons as CSV."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        for row in self.rows():
            gain = "" if row["difference"] is None else f", {row['difference']:+.4g}"
            gain += "" if row["low"] is None else f" ({row['low']:.4g} to {row['high']:.4g})"
            yield row["outcome"], f"{row['name']}: {row['candidate']}{gain}, {row['trainings']} runs"
        accepted = len(self.heads) - 1
        yield "head", str(self.heads[-1].program)
        yield "level", f"{self.left:.0%} left after {pluralize(self._tests, 'test')}, {accepted} accepted"
        for final in self.finals:
            what = "" if final["head"] == self.heads[-1].number else f", of head {final['head']} before"
            yield "final", f"{final['headline']}{what}. {final['figures']}"

    @property
    def _tests(self) -> int:
        return sum(entry["test"] is not None for entry in self.comparisons)

    def svg(self) -> str:
        """Draw the accepted changes, each against the head before it, and the last final comparison."""
        from automl.report.forest import forest  # and Altair, which takes a second

        shown = [
            WrittenComparison(
                variant=f"{entry['name']}: {entry['candidate']}",
                role="accepted",
                difference=entry["verdict"].difference,
                interval=entry["verdict"].interval,
            )
            for entry in self.comparisons
            if entry["verdict"] is not None and entry["verdict"].outcome == ACCEPTED
        ]
        shown += [
            WrittenComparison(
                variant="the head: against the first baseline",
                role="final",
                difference=final["difference"],
                interval=final["interval"],
            )
            for final in self.finals[-1:]
        ]
        plot = forest(
            WrittenVerdict(
                confirmation=1,
                complete=True,
                verdict=None,
                headline="",
                figures="",
                winner=None,
                finalist=None,
                seeds=0,
                margin=0.0,
                unit=self.metric.get("unit") or "",
                metric=self.metric.get("metric", ""),
                split="",
                resolution=0.0,
                comparisons=shown,
                variants=[],
            )
        )
        if plot.figure is None:
            raise InputError(f"the ledger in {self.folder} has no accepted change to draw")
        return plot.figure.svg()


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
    every = ledger.heads()
    if not every:
        raise InputError(f"the ledger in {folder} has no comparison yet")
    first = max(i for i, head in enumerate(every) if head.comparison is None)
    heads = every[first:]
    if final:
        _compare_ends(ledger, heads, trust=trust)
    return LedgerResult(
        folder=folder,
        metric=ledger.fact(METRIC) or {},
        heads=heads,
        comparisons=ledger.comparisons(),
        left=evalues.share_left(len(ledger.tested())),
        finals=[_final(Path(folder) / name, head) for name, head in ledger.finals()],
    )


def _compare_ends(ledger: Ledger, heads: Sequence[Head], *, trust: bool) -> None:
    """Compare the head with the first baseline."""
    first, head = heads[0].program, heads[-1].program
    if first == head:
        raise InputError(f"the ledger in {ledger.folder} has no accepted change to compare")
    if Path(head.folder) != Path.cwd():
        raise InputError(f"the programs of the ledger run in {head.folder}; run this there")
    for program in (first, head):
        if describe(program.command, commit=program.commit).identity != program.identity:
            raise InputError(f"the files of {program} have changed since; restore them first")
    names = [command_in(program.folder, program.command) for program in (first, head)]
    check_trusted("the comparison", names, trust=trust)
    fact = ledger.fact(METRIC)
    programs: dict[str, Any] = {"baseline": first.command, "candidates": head.command}
    if head.commit:
        programs = {"command": head.command, "baseline_ref": first.commit, "candidate_refs": head.commit}
    name = f"final-{time.strftime('%Y%m%d-%H%M%S')}"
    ledger.add_final(name, heads[-1].number)
    options = {key: fact[key] for key in ("metric", "last", "minimize", "unit", "equal")}
    file = fact["metric_file"] or None
    run_referee(**programs, **options, metric_file=file, name=name, storage=str(ledger.folder))


def _final(folder: Path, head: int) -> dict[str, Any]:
    """Return the figures of a comparison of a head with the first baseline."""
    verdicts = read_verdicts(folder) if folder.is_dir() else []
    result: dict[str, Any] = {"name": folder.name, "head": head, "headline": "not finished", "figures": ""}
    result |= {"difference": None, "interval": None}
    if verdicts and verdicts[-1].comparisons:
        verdict = verdicts[-1]
        shown = verdict.comparisons[0]
        result |= {"headline": verdict.headline, "figures": verdict.figures}
        result |= {"difference": shown.difference, "interval": shown.interval}
    return result
