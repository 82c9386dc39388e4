"""`automl ledger`: list a ledger, and compare its head with its first baseline."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.base.terminal import Summary
from automl.base.units import pluralize
from automl.judge import evalues
from automl.judge.ledger import COMPARISON, FINAL, TEST, VERDICT, Decision, Ledger, Program
from automl.judge.protocol import Confirmation, confirmations
from automl.judge.scheduler import latest_verdict
from automl.judge.stream import METRIC, describe, find_again
from automl.storage.folder import exists, find_search
from automl.storage.user_code import check_trusted, command_in
from automl.tasks.command import CommandTraining
from search.metric import Metric


@dataclass(frozen=True, kw_only=True, repr=False)
class LedgerResult(Summary):
    """A ledger as it stands. It shows itself in a few lines.

    Attributes:
        folder: The folder of the ledger.
        metric: The options of its metric.
        heads: The first baseline and the accepted changes, in order. The last one is the head.
        comparisons: All comparisons in order, with the fields of their verdicts. `candidate` is the program.
        tests: How many tests have spent a part of the level.
        left: The share of the level that is left.
        finals: Comparisons of a head with the first baseline on fresh seeds, in order.

    Example:
        After the example of `run_ledger`:

        >>> ledger = automl.run_ledger("runs")
        >>> ledger.tests, len(ledger.comparisons)
        (1, 1)
    """

    folder: str
    metric: dict[str, Any]
    heads: Sequence[Any]
    comparisons: Sequence[dict[str, Any]]
    tests: int
    left: float
    finals: Sequence[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: to_json(value) for name, value in vars(self).items()}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        training = CommandTraining(metric=self.metric.get("metric", "gain"))
        unit = Metric(name=training.metric_name, maximize=True, unit=self.metric.get("unit", "")).gap_unit
        for row in self.comparisons:
            text = f"{row['candidate']}{_gain(row, unit)}, {pluralize(row['trainings'], 'runs')}"
            yield "change", f"{row['name']}: {row['outcome']}, {text}"
        yield "head", str(self.heads[-1].program)
        tests = pluralize(self.tests, "tests")
        yield "level", f"{self.left:.0%} left after {tests}, {len(self.heads) - 1} accepted"
        for final in self.finals:
            gain = f"{final['headline']}{_gain(final, unit)}"
            yield "final", f"head {final['head']} against the first baseline: {gain}"


def _gain(row: Mapping[str, Any], unit: str) -> str:
    interval = "" if row["interval"] is None else " ({:.4g} to {:.4g})".format(*row["interval"])
    return "" if row["difference"] is None else f", {row['difference']:+.4g} {unit}{interval}"


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

    Example:
        After the example of `run_referee`:

        >>> judged = automl.run_referee(baseline, candidate, metric="acc (.*)", any_time=True, ledger="runs")
        >>> automl.run_ledger("runs").heads[-1].comparison == judged.search
        True
    """
    ledger = Ledger(Path(folder))
    if not (heads := ledger.heads()):
        raise InputError(f"the ledger in {folder} has no comparison yet")
    if final:
        _compare_ends(ledger, heads, trust=trust)
    verdicts, tests = ledger.rows(VERDICT), ledger.rows(TEST)
    return LedgerResult(
        folder=folder,
        metric=ledger.rows().get(METRIC, {}),
        heads=heads,
        comparisons=[
            {"name": name, **row, "candidate": Program(**row["candidate"])}
            | verdicts.get(name, {**vars(Decision(outcome="not finished")), "index": tests.get(name)})
            | {"head": row["head"]}
            for name, row in ledger.rows(COMPARISON).items()
        ],
        tests=len(tests),
        left=evalues.share_left(len(tests)),
        finals=[_final(name, folder, head) for name, head in ledger.rows(FINAL).items()],
    )


def _compare_ends(ledger: Ledger, heads: Sequence[Any], *, trust: bool) -> None:
    from automl.tasks.command.referee import RESOURCES_OF_RUNS, run_referee  # what trains takes time

    if len(heads) == 1:
        raise InputError(f"the ledger in {ledger.folder} has no accepted change to compare")
    for program in (heads[0].program, heads[-1].program):
        if Path(program.folder) != Path.cwd():
            raise InputError(f"{program} runs in {program.folder}; run this there")
    first, head = (find_again(heads[i].program) for i in (0, -1))
    for program in (first, head):
        if describe(program.command, commit=program.commit).identity != program.identity:
            raise InputError(f"the files of {program} have changed since; restore them first")
        check_trusted("the comparison", [command_in(program.folder, program.command)], trust=trust)
    options: dict[str, Any] = {"baseline": first.command, "candidates": head.command}
    if head.commit:
        options = {"command": head.command, "baseline_ref": first.commit, "candidate_refs": head.commit}
    fact = ledger.rows()[METRIC]
    options |= {key: fact[key] for key in ("metric", "last", "minimize", "unit", "any_time")}
    options |= {"metric_file": fact["metric_file"] or None, "evaluate": fact["evaluate"] or None}
    # The resources and the cache of the comparison that accepted the head.
    folder, metadata = find_search(str(heads[-1].comparison), str(ledger.folder))
    options |= {option: getattr(metadata.settings.place, option) for option in RESOURCES_OF_RUNS}
    training = Confirmation.read(confirmations(folder)[-1]).variant_set.variants[0].config.training
    assert isinstance(training, CommandTraining)
    options["cache"] = training.guard.ignored[:-1]  # without the storage
    name = f"final-{time.strftime('%Y%m%d-%H%M%S')}"
    ledger.set_once(name, heads[-1].number, FINAL)
    run_referee(**options, protect=list(fact["protect"]), name=name, storage=str(ledger.folder), trust=trust)


def _final(name: str, storage: str, head: int) -> dict[str, Any]:
    """Return the figures of a comparison of a head with the first baseline."""
    value = {"name": name, "head": head, "candidate": f"head {head} against the first baseline"}
    value |= {"headline": "not finished", "difference": None, "interval": None}
    if exists(name, storage) and (latest := latest_verdict(*find_search(name, storage))):
        shown = latest[1].to_json()
        value |= {key: shown[key] for key in ("headline", "difference", "interval")}
    return value
