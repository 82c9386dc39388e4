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
from automl.base.units import format_duration, pluralize
from automl.judge.decision import MAX_PAIRS, OUTCOMES, Outcome
from automl.judge.design import Design
from automl.judge.ledger import Decision
from automl.judge.rules import Evidence, Opponent
from automl.judge.scores import Reached, Scores
from automl.judge.statistics import NO_LONGER, Difference, Ratio
from automl.judge.variants import Variant
from search.config import TrialConfig
from search.record import Role

CONFIRM_FOLDER, VERDICT_FILE = "confirm", "verdict.json"
CLOSED_GATE = 0.05  # an absolute gate below which a module hardly changes its input
INCOMPLETE = "A seed counts once the baseline and all {finalist}s have trained with it."
# The conclusion if the winner is not shown to be better than a control.
CONCLUSIONS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and site are not shown to matter",
}


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
            "sentence": self.words(design),
        }

    def words(self, design: Design) -> str:
        """Return a variant's difference from the baseline in words."""
        d, time, decimals = self.difference, self.time, design.decimals
        signed = design.signed if design.metric.maximize else f"{design.signed},"
        images = self.test_interval(decimals)
        also = f" ({images})" if images else ""
        spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
        return (
            f"{self.variant.name}: {d.mean:+.{decimals}f} {signed} vs the baseline, "
            f"{d.in_words(decimals)}{also}, {spent}"
        )

    def test_interval(self, decimals: int) -> str:
        """Return the interval over seeds and test examples, or nothing if it reads as that over seeds."""
        if self.images is None:
            return ""
        interval = " to ".join(f"{end:.{decimals}f}" for end in self.images)
        is_same = interval in self.difference.in_words(decimals)
        return "" if is_same else f"over seeds and test examples {interval}"


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
        """Return what was shown: the outcome, the difference with its interval, and of what."""
        if self.noise is not None:
            return self.words
        if self.outcome is None or self.lead is None:
            return "No verdict: fewer than two seeds are complete"
        if self.awaited:
            return f"No verdict yet: {pluralize(len(self.awaited), 'opponents')} of a finalist still to train"
        if not self.complete:
            count = self.lead.difference.count
            return f"No verdict yet: {count} of {len(self.design.seeds)} seeds are complete"
        return f"Cannot tell: {self.words}" if self.outcome == "cannot tell" else self.words

    @property
    def advice(self) -> str:
        """Return what to do, in a sentence, or nothing before the verdict is final."""
        if self.final in (None, "cannot tell") or self.lead is None:
            return ""
        opaque, design, lead = self.design.kind.opaque, self.design, self.lead
        untried = lead.difference.low > 0 and any(other.difference is None for other in lead.opponents)
        if opaque and self.final == "undecided" and untried:
            option = "or --any-time if time does not matter"
            return f"Add {{budget}}, its length of training, to the baseline, {option}."
        if self.decision is not None:
            return ""
        if self.final == "better":
            return "Use it." if opaque else "Use it: automl export --best"
        if self.final != "undecided":
            return "Keep the baseline." if opaque else "Use the baseline: automl export --baseline"
        if seeds := self.settling:
            spent = self.seconds and f", {format_duration(seeds * self.seconds)} of training,"
            command = "" if opaque else f": automl confirm --again --seeds {seeds}"
            return f"{seeds} fresh seeds{spent or ''} settle it with 80 % power{command}"
        size = None if self.shown is None else f"{self.shown:.{design.decimals}f} {design.unit}"
        return f"{MAX_PAIRS} seeds would show a difference of {size} with 80 % power." if size else ""

    @property
    def figures(self) -> str:
        """Return how sure the verdict is: the other opponents, p, and the interval over test examples."""
        if self.noise is not None:
            return self.explanation
        if self.outcome is None or self.lead is None:
            return INCOMPLETE.format(finalist=self.design.kind.finalist)
        design, lead, sentences = self.design, self.lead, []
        decimals, d = design.decimals, lead.difference
        if not self.complete:
            sentences.append(f"So far {d.mean:+.{decimals}f} {design.signed}, {d.in_words(decimals)}")
        elif design.size(d) not in self.words and (
            self.decision is not None or self.outcome in ("equivalent", "cannot tell")
        ):
            sentences.append(f"{d.mean:+.{decimals}f} {design.signed}{d.ends(decimals)}, {d.signs}")
        if self.complete and self.outcome in ("better", "undecided"):
            beaten = [(other.name, other.difference) for other in lead.opponents if other.difference]
            others = [f"against {name} {o.mean:+.{decimals}f}{o.ends(decimals)}" for name, o in beaten]
            sentences += [f"A{', '.join(others)[1:]}"] * bool(others)
        if images := lead.test_interval(decimals):
            sentences.append(images[0].upper() + images[1:])
        sentences.append(self._probability(lead) if self.decision is None else self.decision.evidence)
        if self.failed_attempts:
            failed = ", ".join(f"{count} of {name}" for name, count in self.failed_attempts.items())
            sentences.append(f"Failed attempts: {failed}")
        # The headline of a gain names the finalist.
        name = "" if self.final == "better" else f"{lead.variant.title}: "
        return f"{name}{'. '.join(sentences)}."

    @property
    def cost(self) -> str:
        """Return what the leading finalist costs: its time, its steps, and when it reaches the baseline."""
        if self.lead is None or self.outcome is None or self.noise is not None:
            return ""
        sentences = ["Time not measured"]
        if (time := self.lead.time) is not None:
            equal = {"time": "Time", "epochs": "Equal epochs, time"}.get(self.design.equal, "Any time, here")
            sentences = [f"{equal} {time.mean:.2f} ({time.low:.2f} to {time.high:.2f}) of the baseline's"]
        if self.reached is not None:
            sentences.append(f"reaches the baseline's score in {100 * self.reached.time:.0f} % of it")
        if self.steps is not None and round(self.steps[0]) != round(self.steps[1]):
            sentences.append(f"{self.steps[0]:.0f} steps against {self.steps[1]:.0f}")
        return f"{', '.join(sentences)}."

    @property
    def lines(self) -> list[str]:
        """Return the verdict in at most three lines: what to do, how sure it is, what it costs."""
        return join_lines(self.headline, self.advice, self.figures, self.cost)

    @property
    def remarks(self) -> list[str]:
        """Return lines with reasons and the conclusions from controls, beside the table of comparisons."""
        if self.lead is None or self.outcome is None:
            return []
        if self.decision is not None:
            return self.decision.lines()
        limits = self._limits(self.lead) if self.complete else []
        return [*limits, *self._controls(self.lead)]

    def _probability(self, lead: Comparison) -> str:
        """Return p of the leading finalist, for the same level as its interval."""
        text = f"p = {lead.p_holm:.2g}"
        if self.level is not None:
            text += f" at level {self.level:.2g} of this interim analysis"
        finalists = sum(comparison.p_holm is not None for comparison in self.comparisons)
        return f"{text}, adjusted for {finalists} {self.design.kind.finalist}s" if finalists > 1 else text

    def _limits(self, lead: Comparison) -> list[str]:
        """Return the reason of an open verdict, and limits of the margin, a gain, and modules hardly used."""
        design, d, images = self.design, lead.difference, lead.images
        lines = [self.explanation] * bool(self.explanation)
        inputs = f"{design.inputs} test inputs"
        if 0 < design.margin == design.resolution:
            lines.append(
                f"The margin is {design.margin:.3g} {design.unit}, the effect of one of the {inputs}."
            )
        if d.mean < 0 and self.gate is not None and self.gate < CLOSED_GATE:
            lines.append(f"The largest gate is {self.gate:.2g}, so the model is close to the plain backbone.")
        if self.winner is not None and d.mean < design.margin:
            lines.append(f"The gain is below the margin of {design.margin:g} {design.unit}.")
        if self.winner is not None and images is not None and images[0] <= 0:
            lines.append(
                f"Test on more inputs before you generalize: the interval over seeds and "
                f"{f'these {design.inputs}' if design.inputs else 'the'} test examples contains 0."
            )
        return lines

    def _controls(self, lead: Comparison) -> list[str]:
        """Return what the other variants show about the leading finalist, and controls that stand out."""
        signed, decimals, lines = self.design.signed, self.design.decimals, []
        none_better = all(c.difference.low <= 0 for c in self.comparisons if c.variant.role is Role.FINALIST)
        if self.pending and self.winner is not None:
            names = " and ".join(variant.name for variant in self.pending)
            lines.append(f"Train {names} to learn the cause of the gain.")
        for comparison in self.comparisons:
            d = comparison.lead
            if d is None or comparison.variant.role in (Role.PLAIN, Role.LONGER):  # in the figures
                continue
            text = f"{lead.variant.name} against {comparison.variant.name}: {d.mean:+.{decimals}f} "
            text += f"{signed} ({d.in_words(decimals)})"
            # Before all seeds are trained, each further seed would be another interim analysis.
            whole = comparison.variant not in self.pending
            if whole and self.winner is not None and d.low <= 0 and comparison.variant.role in CONCLUSIONS:
                text += f", so {CONCLUSIONS[comparison.variant.role]}"
            lines.append(f"{text}.")
            # It stands out if its interval is above 0, in no more time.
            time = comparison.time
            fair = self.design.equal != "time" or (time is not None and time.high <= NO_LONGER)
            stands_out = comparison.variant.role in CONCLUSIONS and comparison.difference.low > 0 and fair
            if whole and self.complete and none_better and stands_out:
                name = f"Confirm {comparison.variant.name} with other seeds"
                lines.append(
                    f"{name}: it was better than the baseline, but this confirmation does not test it."
                )
        return lines

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
                {**redact_all(to_json(variant)), **_by_seed(scores[variant.name])} for variant in variants
            ],
            "failed_attempts": self.failed_attempts,
            "warnings": list(self.warnings),
            **({} if self.decision is None else {"ledger": vars(self.decision)}),
            **({} if self.noise is None else {"noise": self.noise}),
        }


def join_lines(headline: str, advice: str, figures: str, cost: str) -> list[str]:
    """Return a verdict in at most three lines: what to do, how sure it is, what it costs."""
    first = f"{headline}. {advice}" if advice else headline
    return [line for line in (first, figures, cost) if line]


def word_fields(design: Design, lead: Comparison, evidence: Evidence) -> dict[str, Any]:
    """Return the values of the fields in the words of a rule."""
    guess = ""
    if design.chance is not None:
        value, unit = design.chance.value, f" {design.unit}" * (design.unit != design.metric.name)
        guess = f"{value:.4f}{unit}" if design.metric.scale == 1 else f"{100 * value:.1f} %"
    d, time = lead.difference, lead.time
    less = time is not None and design.equal == "time" and time.high < 1 / NO_LONGER
    return {
        "winner": lead.variant.title,
        "finalist": design.kind.finalist,
        "baseline": design.kind.baseline,
        "difference": design.size(d),
        "signed": f"{d.mean:+.{design.decimals}f} {design.signed}{d.ends(design.decimals)}",
        "seeds": d.signs,
        "less_time": f", in {100 * (1 - time.mean):.0f} % less time" if less and time is not None else "",
        "equal": _equal(evidence, lead),
        "count": d.count,
        "constant": evidence.constant,
        "metric": design.metric.name,
        "guess": guess,
        "margin": f"{design.margin:g} {design.unit}",
        "inputs": design.inputs,
        "resolution": f"{design.resolution:.2g} {design.unit}",
    }


def _equal(evidence: Evidence, lead: Comparison) -> str:
    """Return the opponent that the leading finalist is not shown to beat, in words."""
    other = evidence.equal
    if other is None:
        return ""
    if other.difference is None and lead.most_time is not None:
        return f"takes up to {lead.most_time:.2f} times as long"
    return f"{other.name} {'may do' if other.difference and other.difference.mean > 0 else 'does'} as well"


def _by_seed(trained: Scores) -> dict[str, Any]:
    values = {name: getattr(trained, name) for name in ("scores", "failed", "failed_attempts")}
    values["costs"] = {seed: vars(cost) for seed, cost in trained.costs.items()}
    return {name: {str(seed): each[seed] for seed in each} for name, each in values.items()}


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
        return join_lines(self.headline, self.advice, self.figures, self.cost)

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
