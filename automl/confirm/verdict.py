"""The verdict of a confirmation and its comparisons, as values and in `verdict.json`.

`Verdict.to_json` returns the content of the file. Other commands read it as `WrittenVerdict`, and
`ConfirmResult` is the confirmation as it stands, for the caller and the command line.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from attention.spec import Placement
from automl.base.errors import InputError
from automl.base.escape import redact_all
from automl.base.options import STORAGE
from automl.base.serialise import read_json, to_json
from automl.base.summary import Summary, call
from automl.confirm import wording
from automl.confirm.decision import OUTCOMES, Outcome
from automl.confirm.design import Design
from automl.confirm.ledger import Decision
from automl.confirm.rules import Opponent
from automl.confirm.scores import Reached, Scores
from automl.confirm.statistics import Difference, Ratio
from automl.confirm.variants import Variant
from search.config import TrialConfig

CONFIRM_FOLDER, VERDICT_FILE = "confirm", "verdict.json"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant compared with the baseline.

    Attributes:
        variant: The variant.
        difference: Its difference from the baseline.
        p_holm: For a finalist, p adjusted for all finalists.
        opponents: For a finalist, what it has to beat beside the baseline.
        most_time: For a finalist, how many times the baseline's time it took at most. None if not known.
        lead: For other variants, the difference of the leading finalist from this variant.
        images: The interval over seeds and test inputs, or None if it is not known.
        time: The ratio of its training time to the baseline's, or None if it is not known.
    """

    variant: Variant
    difference: Difference
    p_holm: float | None = None
    opponents: Sequence[Opponent] = ()
    most_time: float | None = None
    lead: Difference | None = None
    images: tuple[float, float] | None = None
    time: Ratio | None = None

    def to_json(self, design: Design) -> dict[str, Any]:
        """Return plain values, with the comparison in words."""
        d, lead = self.difference, self.lead
        return {
            "variant": self.variant.name,
            "role": str(self.variant.role),
            "difference": d.mean,
            "interval": _interval(d),
            "interval_inputs": self.images,
            "time": _ratio(self.time),
            "p": d.p,
            "p_holm": self.p_holm,
            "opponents": [_opponent(each) for each in self.opponents],
            "lead": _difference(lead),
            "sentence": wording.against_baseline(self, design),
        }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a confirmation.

    Attributes:
        design: The seeds, the margin and the metric of the comparison.
        outcome: `better`, `worse`, `equivalent`, `undecided` or `cannot tell`. None with fewer than two
            seeds.
        words: The words of the rule that decided: the headline, or the reason of `cannot tell`.
        explanation: The reason in a full sentence.
        complete: True if nothing more will be trained.
        lead: The leading finalist. It is the winner if the final outcome is `better`.
        comparisons: Each variant against the baseline.
        used: The seeds that the verdict is based on.
        level: The significance level of p in a sequential confirmation.
        needed: The seeds of a new confirmation that would detect the margin with 80 % power.
        needed_here: The seeds that would detect a difference as large as the observed one.
        settling: The fewer of these, more than were used, or None if that is too many to recommend.
        shown: The difference that as many seeds as a text recommends at most would detect.
        seconds: The mean time of the trainings of a seed, of the leading finalist and the baseline.
        steps: The mean steps of the leading finalist and of the baseline, or None if they are not known.
        gate: The largest absolute gate that the finalist has learned, or None if it is not known.
        reached: When the leading finalist reaches the baseline's score. None if it does not, or at its end.
        awaited: Opponents that have to be trained before the verdict is known.
        is_constant: True if a command gives the same score with every seed, so it seems to ignore its seed.
        pending: Controls that have not ended with all of the seeds.
        warnings: Reasons to doubt the verdict.
        failed_attempts: The number of trainings that ended in an error by variant, if there are any. Those
            that were tried again count, interrupted ones do not.
        decision: The verdict in a ledger, with its evidence so far. None without a ledger.
        noise: The noise of the baseline, if only that was measured.

    Example:
        After the example of `run_confirm`:

        >>> verdict = confirmed.verdict
        >>> verdict.outcome in ("better", "worse", "equivalent", "undecided", "cannot tell")
        True
    """

    design: Design
    outcome: Outcome | None = None
    words: str = ""
    explanation: str = ""
    complete: bool = False
    lead: Comparison | None = None
    comparisons: Sequence[Comparison] = ()
    used: Sequence[int] = ()
    level: float | None = None
    needed: int | None = None
    needed_here: int | None = None
    settling: int | None = None
    shown: float | None = None
    seconds: float | None = None
    steps: tuple[float, float] | None = None
    gate: float | None = None
    reached: Reached | None = None
    awaited: Sequence[Variant] = ()
    is_constant: bool = False
    pending: Sequence[Variant] = ()
    warnings: Sequence[str] = ()
    failed_attempts: Mapping[str, int] = field(default_factory=dict)
    decision: Decision | None = None
    noise: Mapping[str, float] | None = None

    @property
    def winner(self) -> Variant | None:
        """Return the variant that is better than the baseline, or None."""
        return self.lead.variant if self.lead is not None and self.final == "better" else None

    @property
    def final(self) -> Outcome | None:
        """Return the outcome if nothing more will be trained, otherwise None."""
        return self.outcome if self.complete else None

    @property
    def headline(self) -> str:
        """Return what was shown."""
        return wording.headline(self)

    @property
    def advice(self) -> str:
        """Return what to do."""
        return wording.advice(self)

    @property
    def cost(self) -> str:
        """Return what the leading finalist costs."""
        return wording.cost(self)

    @property
    def lines(self) -> list[str]:
        """Return the verdict in at most three lines: what to do, how sure it is, what it costs."""
        return wording.lines(self)

    @property
    def figures(self) -> str:
        """Return how sure the verdict is."""
        return wording.figures(self)

    @property
    def remarks(self) -> list[str]:
        """Return lines with reasons and the conclusions from other variants."""
        return wording.remarks(self)

    def to_json(self, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Return plain values, with each variant's scores."""
        lead = self.lead.difference if self.lead is not None else None
        design = self.design
        return {
            "complete": self.complete,
            "verdict": self.final,
            "headline": self.headline,
            "advice": self.advice,
            "figures": self.figures,
            "cost": self.cost,
            "remarks": self.remarks,
            "winner": self.winner.name if self.winner else None,
            "finalist": self.lead.variant.name if self.lead else None,
            "difference": lead and lead.mean,
            "interval": lead and _interval(lead),
            "interval_inputs": self.lead and self.lead.images,
            "opponents": [_opponent(each) for each in self.lead.opponents] if self.lead else [],
            "time": self.lead and _ratio(self.lead.time),
            "most_time": self.lead and self.lead.most_time,
            "reached": None if self.reached is None else vars(self.reached),
            "equal": design.equal,
            "p": self.lead and self.lead.p_holm,
            "seeds": len(self.used),
            "seeds_ahead": lead and lead.ahead,
            "seeds_needed": self.needed,
            "seeds_needed_here": self.needed_here,
            "steps": self.steps and list(self.steps),
            "gate": self.gate,
            "margin": design.margin,
            "unit": design.unit,
            "metric": design.metric.name,
            "split": design.kind.split,
            "inputs": design.inputs,
            "chance": design.chance and design.chance.value,
            "resolution": design.resolution,
            "sequential": design.sequential,
            "pending": [variant.name for variant in self.pending],
            "comparisons": [comparison.to_json(design) for comparison in self.comparisons],
            "variants": [
                {
                    **redact_all(to_json(variant)),
                    "scores": {str(seed): value for seed, value in scores[variant.name].scores.items()},
                    "failed": {str(seed): reason for seed, reason in scores[variant.name].failed.items()},
                    "failed_attempts": {
                        str(seed): count for seed, count in scores[variant.name].failed_attempts.items()
                    },
                    "costs": {str(seed): vars(cost) for seed, cost in scores[variant.name].costs.items()},
                }
                for variant in variants
            ],
            "failed_attempts": self.failed_attempts,
            "warnings": list(self.warnings),
            **({} if self.decision is None else {"ledger": vars(self.decision)}),
            **({} if self.noise is None else {"noise": self.noise}),
        }


def _interval(d: Difference) -> list[float] | None:
    """Return the interval for JSON, which has no infinity."""
    return [d.low, d.high] if d.bounded else None


def _difference(d: Difference | None) -> dict[str, Any] | None:
    return None if d is None else {"difference": d.mean, "interval": _interval(d), "p": d.p}


def _opponent(opponent: Opponent) -> dict[str, Any]:
    return {"opponent": opponent.name, **(_difference(opponent.difference) or {})}


def _ratio(time: Ratio | None) -> dict[str, Any] | None:
    return None if time is None else {"ratio": time.mean, "interval": [time.low, time.high]}


@dataclass(frozen=True, kw_only=True)
class WrittenRatio:
    """The ratio of a variant's training time to the baseline's."""

    ratio: float


@dataclass(frozen=True, kw_only=True)
class WrittenComparison:
    """A `Comparison`: `interval` is that over seeds, `interval_inputs` the one over seeds and test inputs."""

    variant: str
    role: str
    difference: float | None = None
    interval: tuple[float, float] | None = None
    interval_inputs: tuple[float, float] | None = None
    time: WrittenRatio | None = None
    p: float | None = None
    p_holm: float | None = None
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class WrittenVariant:
    """A `Variant` and how it was trained.

    Attributes:
        scores: The scores from 0 to 1 by seed.
        failed: The reason of a missing score by seed.
        costs: The `steps`, `seconds` and `processor_seconds` of each training, where they are known.
        placements: As in `Variant`.
    """

    name: str
    role: str
    trial: int | None
    config: TrialConfig
    scores: Mapping[str, float]
    failed: Mapping[str, str]
    costs: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    placements: Sequence[Placement] = ()

    def __post_init__(self) -> None:
        for seed in self.scores:
            if not (seed.isascii() and seed.isdecimal()):
                raise InputError(f"a seed must be a number; got {seed!r}")

    def mean_cost(self, name: str) -> float | None:
        """Return the mean cost of its trainings, or None if not all have it."""
        values = [cost.get(name) for cost in self.costs.values()]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class WrittenVerdict:
    """A confirmation, finished or not. Differences and `margin` are in `unit`.

    Attributes:
        confirmation: The number of the confirmation.
        verdict: The outcome, or None before it is final or if too many trainings failed.
        finalist: The name of the leading finalist.
        remarks: Lines with reasons and the conclusions from other variants.
        pending: The names of controls that have not ended.
    """

    confirmation: int
    complete: bool
    verdict: str | None
    headline: str
    figures: str
    winner: str | None
    finalist: str | None
    seeds: int
    margin: float
    unit: str
    metric: str
    split: str
    resolution: float
    comparisons: Sequence[WrittenComparison]
    variants: Sequence[WrittenVariant]
    sequential: bool = False
    advice: str = ""
    cost: str = ""
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()
    pending: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.verdict not in (*OUTCOMES, None):
            raise InputError(f"verdict must be one of {', '.join(OUTCOMES)}; got {self.verdict!r}")

    @property
    def lines(self) -> list[str]:
        """Return the verdict in at most three lines, as `Verdict.lines`."""
        return wording.lines(self)

    @property
    def details(self) -> str:
        """Return how sure the verdict is, and what it costs."""
        return " ".join(self.lines[1:])


def confirm_folder(number: int) -> str:
    """Return the folder of a confirmation in that of its search."""
    return CONFIRM_FOLDER if number == 1 else f"{CONFIRM_FOLDER}-{number}"


def read_verdict(folder: Path) -> WrittenVerdict:
    """Read `verdict.json` of the confirmation in `folder`. Raise InputError if it is damaged."""
    try:
        return read_json(WrittenVerdict, folder / VERDICT_FILE, strict=False)
    except InputError as error:
        raise InputError(f"{error}; move it away, or make it again with automl confirm") from error


def read_verdicts(folder: Path) -> list[WrittenVerdict]:
    """Read the confirmations of a search, the latest last. Raise InputError for a damaged one."""
    folders = {}
    for file in folder.glob(f"{CONFIRM_FOLDER}*/{VERDICT_FILE}"):
        if match := re.fullmatch(rf"{CONFIRM_FOLDER}(?:-(\d+))?", file.parent.name):
            folders[int(match[1] or 1)] = file.parent
    return [read_verdict(folders[number]) for number in sorted(folders)]


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfirmResult(Summary):
    """A confirmation as it stands. It shows itself in a few lines.

    Attributes:
        search: The name of the search.
        number: The number of the confirmation of this search, from 1 on.
        folder: The folder of the confirmation, with its study and checkpoints.
        verdict: The verdict.
        value: The content of `verdict.json`.
        storage: The folder or object store of the search.
        untracked: The number of trials that MLflow does not have in full.
        user_code: The names of user-defined code that exporting a model runs.
        logs: The traceback of each training that failed, by variant and seed. Of a command, it is the end of
            its output. It is empty if there is none.

    Example:
        After the example of `run_confirm`:

        >>> confirmed.number, confirmed.folder.name
        (1, 'confirm')
    """

    search: str
    number: int
    folder: Path
    verdict: Verdict
    value: dict[str, Any]
    storage: str = STORAGE
    untracked: int = 0
    user_code: Sequence[str] = ()
    logs: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        number = f" (confirmation {self.number})" if self.number > 1 else ""
        kind = self.verdict.design.kind
        yield kind.done, f"{self.search}{number}: {self.verdict.final or 'no verdict'}"
        for i, line in enumerate(self.verdict.lines):
            yield ("verdict", "figures", "cost")[i], line
        for warning in self.value["warnings"]:
            yield "warning", warning
        yield "folder", str(self.folder)
        storage = None if self.storage == STORAGE else self.storage
        if kind.opaque:
            if self.verdict.complete:
                yield "next", call("run_report", self.search, storage=storage)
            else:
                yield "next", call("run_referee", resume=self.search, storage=storage)
        elif not self.verdict.complete:
            yield "next", call("run_confirm", self.search, storage=storage)
        else:  # Without a winner, the plain backbone is deployed.
            model = "baseline" if self.value["winner"] is None else "best"
            trust = True if self.user_code else None
            options = {model: True, "search": self.search, "storage": storage, "trust": trust}
            yield "next", call("run_export", f"exports/{self.search}", **options)
