"""Files on a verdict for other systems: a summary in Markdown, and test results in JUnit's XML."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from automl.base.errors import InputError
from automl.base.escape import markdown, markdown_code, printable, redact
from automl.base.lazy import later
from automl.base.options import WRITES
from automl.base.units import format_duration, pluralize
from automl.cli.command import option

if TYPE_CHECKING:
    from automl.judge.verdict import ConfirmResult, TrainedVariant
    from automl.tasks.command.run_ledger import LedgerResult
    from search.metric import Metric

xml = later("xml.etree.ElementTree")

SUMMARY = option(None, "Markdown file to append a summary to.", effect=WRITES)
JUNIT = option(None, "File of test results in JUnit's XML.", effect=WRITES)
COPY = re.compile(r"/commits/([0-9a-f]{7})-\w{8}\b")  # the hash in the folder of a copy, in `commits`
NO_XML = re.compile("[\ufffe\uffff]")  # beside control characters

STATES = {"better": "passed", "equivalent": "passed", "worse": "failure"}  # of JUnit, by the outcome


@dataclass(frozen=True, kw_only=True)
class Case:
    """A verdict as a test. Its state is `passed`, `skipped` if it shows nothing, `failure` or `error`."""

    name: str
    state: str
    message: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Verdicts for other systems.

    Attributes:
        title: The command and its result, in plain text.
        cases: The verdicts.
        lines: The summary, in Markdown, without the title.
    """

    title: str
    cases: Sequence[Case]
    lines: Sequence[str]

    def write(self, summary: Path | None, junit: Path | None) -> None:
        """Append the summary to one file, and write the cases into another one."""
        if summary is not None:
            text = "\n".join([f"## {markdown(self.title)}", "", *self.lines, "", ""])
            with open(summary, "a", encoding="utf-8") as file:
                file.write(text)
        if junit is not None:
            junit.write_bytes(xml.tostring(self._to_xml(), encoding="utf-8", xml_declaration=True))

    def _to_xml(self) -> Any:
        states = [case.state for case in self.cases]
        names = {"failures": "failure", "errors": "error", "skipped": "skipped"}
        counts = {name: str(states.count(state)) for name, state in names.items()}
        counts |= {"tests": str(len(states)), "time": f"{sum(case.seconds for case in self.cases):.3f}"}
        suite = xml.Element("testsuite", {"name": "automl", **counts})
        for case in self.cases:
            facts = {"classname": "automl", "name": _plain(case.name), "time": f"{case.seconds:.3f}"}
            test = xml.SubElement(suite, "testcase", facts)
            if case.state != "passed":
                xml.SubElement(test, case.state, {"message": _plain(case.message.split("\n")[0])})
            xml.SubElement(test, "system-out").text = _plain(case.message)
        return suite


def check_writable(*files: Path | None) -> None:
    """Raise InputError if a file cannot be written, before runs begin that take hours."""
    for file in files:
        if file is not None and not os.access(file if file.exists() else file.parent, os.W_OK):
            raise InputError(f"{file} cannot be written; choose a file in a folder that exists")


def report_verdict(result: "ConfirmResult", seconds: float) -> CheckReport:
    """Return the report on a comparison. The command took `seconds` by the clock."""
    verdict, kind = result.verdict, result.verdict.design.kind
    outcome = "noise of the baseline" if verdict.noise is not None else verdict.final or "no verdict"
    state = "passed" if verdict.noise is not None else STATES.get(str(verdict.final), "skipped")
    if verdict.is_constant or not verdict.complete:
        state = "error"
    spent = sum(cost.seconds or 0.0 for variant in verdict.variants for cost in variant.costs.values())
    runs = sum(len(variant.costs) for variant in verdict.variants) + sum(verdict.failed_attempts.values())
    reused = 0 if verdict.decision is None else verdict.decision.reused
    runs, spent = runs - reused, spent * (1 - reused / max(1, runs))  # earlier changes have paid for them
    times = f"{format_duration(spent)} of training, {format_duration(seconds)} by the clock"
    others = [*verdict.lines[1:], *verdict.remarks, *filter(None, [verdict.cause, verdict.next_step])]
    others += [f"Warning: {warning}" for warning in verdict.warnings]
    others.append(f"Cost: {pluralize(runs, 'runs')}, {times}.")
    table = _table(verdict.variants, verdict.design.metric)
    lines = [f"**{_escape(verdict.lines[0])}**", "", *table, "", *(f"- {_escape(line)}" for line in others)]
    message = "\n".join([*verdict.lines, others[-1], result.search])
    name = f"{kind.finalist} against the {kind.baseline}"  # the same for each change, whose history it is
    case = Case(name=name, state=state, message=message, seconds=spent)
    return CheckReport(title=f"{kind.done} {result.search}: {outcome}", cases=[case], lines=lines)


def report_ledger(result: "LedgerResult") -> CheckReport:
    """Return the report on a ledger."""
    from automl.judge.ledger import ACCEPTED

    texts = list(result.lines())
    cases = [
        Case(name=row["name"], message=text, state="passed" if row["outcome"] == ACCEPTED else "skipped")
        for row, (_, text) in zip(result.comparisons, texts, strict=False)
    ]
    lines = [f"- {label} {_escape(text)}" for label, text in texts]
    return CheckReport(title=f"ledger {result.folder}", cases=cases, lines=lines)


def _table(variants: Sequence["TrainedVariant"], metric: "Metric") -> Iterator[str]:
    """Yield the lines of a table: each variant with its command, its scores, and the time of a run."""
    yield f"| | command | runs | mean {_escape(metric.label)} | sd | time of a run |"
    yield "|---|---|---|---|---|---|"
    for variant in variants:
        scores, seconds = (
            [metric.scale * score for score in variant.scores.values()],
            variant.mean_cost("seconds"),
        )
        mean = f"{fmean(scores):.4g}" if scores else "-"
        sd = f"{stdev(scores):.2g}" if len(scores) > 1 else "-"
        time = "-" if seconds is None else f"{seconds:.3g} s"
        command = getattr(variant.config.model, "command", "")
        shown = markdown_code(redact(command)).replace("|", "\\|") if command else ""
        words = [*variant.name.split(), *COPY.findall(variant.config.data.path or "")]
        name = _escape(" ".join(dict.fromkeys(words)))
        yield f"| {name} | {shown} | {len(scores)} | {mean} | {sd} | {time} |"


def _escape(text: str) -> str:
    return markdown(redact(text))


def _plain(text: str) -> str:
    """Return a text without secrets, and without characters that XML cannot have."""
    return NO_XML.sub("?", printable(redact(text), keep="\n"))
