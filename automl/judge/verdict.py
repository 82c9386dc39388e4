"""The verdict of a confirmation and its comparisons, as values and in `verdict.json`.

`ConfirmResult` is the confirmation as it stands, for the caller and the command line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.escape import redact_all, shell
from automl.base.options import STORAGE, option_name
from automl.base.serialise import convert_fields, read_json, to_json
from automl.base.terminal import Summary, call
from automl.base.units import format_duration, pluralize
from automl.judge.causes import Facts, Step, explain
from automl.judge.decision import MAX_PAIRS, Outcome
from automl.judge.design import Design
from automl.judge.ledger import Decision
from automl.judge.rules import Evidence, Opponent
from automl.judge.scores import Scores
from automl.judge.statistics import NO_LONGER, Difference, Ratio
from automl.judge.variants import Variant
from search.record import Role

CONFIRM_FOLDER, VERDICT_FILE = "confirm", "verdict.json"
FORMAT = 2  # version of verdict.json; the first one had no number
INCOMPLETE = "A seed counts once the baseline and all {finalist}s have trained with it."
# The conclusion if the winner is not shown to be better than a control.
CONCLUSIONS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and site are not shown to matter",
    Role.FREE: "no search is shown to be needed",
}


@dataclass(frozen=True, kw_only=True)
class TrainedVariant(Variant, Scores):
    """A variant with the scores and costs of its trainings."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without the answer to each test input."""
        value = convert_fields(self)
        del value["values"]
        return value


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant compared with the baseline.

    Attributes:
        variant: The name of the variant.
        role: Its role.
        difference: Its difference from the baseline.
        p_holm: For a finalist, p adjusted for all finalists.
        opponents: For a finalist, what it has to beat beside the baseline.
        most_time: For a finalist, how many times the baseline's time it took at most. None if not known.
        lead: For other variants, the difference of the leading finalist from this variant.
        images: The interval over seeds and test inputs, or None if it is not known.
        time: The ratio of its training time to the baseline's, or None if it is not known.
    """

    variant: str
    role: Role
    difference: Difference
    p_holm: float | None = None
    opponents: Sequence[Opponent] = ()
    most_time: float | None = None
    lead: Difference | None = None
    images: tuple[float, float] | None = None
    time: Ratio | None = None

    def test_interval(self, decimals: int) -> str:
        """Return the interval over seeds and test examples, or nothing if it reads as that over seeds."""
        if self.images is None:
            return ""
        interval = " to ".join(f"{end:.{decimals}f}" for end in self.images)
        is_same = interval in self.difference.in_words(decimals)
        return "" if is_same else f"over seeds and test examples {interval}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of a comparison, in memory and in `verdict.json`.

    Attributes:
        search: The name of the search.
        confirmation: The number of its confirmation, from 1 on.
        design: The seeds, the margin and the metric of the comparison.
        outcome: `better`, `worse`, `equivalent`, `undecided` or `cannot tell`. None with fewer than two
            seeds.
        words: The words of the rule that decided: the headline, or the reason of `cannot tell`.
        explanation: The reason in a full sentence.
        complete: True if nothing more will be trained.
        finalist: The name of the leading finalist. It is the winner if the final outcome is `better`.
        comparisons: Each variant against the baseline.
        variants: The variants with their scores, the baseline first.
        used: The seeds that the verdict is based on.
        level: The significance level of p in a sequential confirmation.
        settling: The seeds of a new confirmation that would detect the margin or the observed difference with
            80 % power, more than were used. None if that is too many to recommend.
        shown: The difference that as many seeds as a text recommends at most would detect.
        seconds: The mean time of the trainings of a seed, of the leading finalist and the baseline.
        steps: The mean steps of the leading finalist and of the baseline, or None if they are not known.
        gate: The largest absolute gate that the finalist has learned, or None if it is not known.
        slowdown: The time for a step of the leading finalist, divided by the baseline's. None if not known.
        rises: How much the validation scores of the leading finalist and of the baseline still rose at the
            end of training, or None if it is not known.
        original: The scores and costs of the trained model that the search started from, in words.
        command: The command line that started the search. Empty if it was a notebook.
        awaited: Opponents that have to be trained before the verdict is known.
        is_constant: True if a command gives the same score with every seed, so it seems to ignore its seed.
        pending: The names of controls that have not ended with all of the seeds.
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

    search: str = ""
    confirmation: int = 1
    design: Design
    outcome: Outcome | None = None
    words: str = ""
    explanation: str = ""
    complete: bool = False
    finalist: str | None = None
    comparisons: Sequence[Comparison] = ()
    variants: Sequence[TrainedVariant] = ()
    used: Sequence[int] = ()
    level: float | None = None
    settling: int | None = None
    shown: float | None = None
    seconds: float | None = None
    steps: tuple[float, float] | None = None
    gate: float | None = None
    slowdown: Ratio | None = None
    rises: tuple[Difference | None, Difference | None] = (None, None)
    original: str = ""
    command: Sequence[str] = ()
    awaited: Sequence[Variant] = ()
    is_constant: bool = False
    pending: Sequence[str] = ()
    warnings: Sequence[str] = ()
    failed_attempts: Mapping[str, int] = field(default_factory=dict)
    decision: Decision | None = None
    noise: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        names = {variant.name for variant in self.variants}
        if missing := {comparison.variant for comparison in self.comparisons} - names:
            raise InputError(f"comparisons name variants that are missing: {', '.join(sorted(missing))}")
        if self.finalist is not None and (self.lead is None or self.lead.p_holm is None):
            raise InputError(f"finalist must be one of the comparisons, with p_holm; got {self.finalist!r}")
        if self.noise is None and (self.outcome is None) != (self.finalist is None):
            raise InputError(f"outcome {self.outcome!r} does not fit the finalist {self.finalist!r}")

    def __eq__(self, other: object) -> bool:
        """Compare as JSON, which has no difference between lists and tuples."""
        return self.to_json() == other.to_json() if isinstance(other, Verdict) else NotImplemented

    @property
    def lead(self) -> Comparison | None:
        """Return the comparison of the leading finalist, or None without one."""
        return next((each for each in self.comparisons if each.variant == self.finalist), None)

    @property
    def leader(self) -> TrainedVariant | None:
        """Return the leading finalist, or None without one."""
        return None if self.finalist is None else self.variant(self.finalist)

    @property
    def winner(self) -> TrainedVariant | None:
        """Return the variant that is better than the baseline, or None."""
        return self.leader if self.final == "better" else None

    def variant(self, name: str) -> TrainedVariant:
        """Return the variant of a name."""
        return next(variant for variant in self.variants if variant.name == name)

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
        if self.outcome == "cannot tell":
            return f"Cannot tell: {self.words}"
        return f"{self.words}{self._against_free}"

    @property
    def _against_free(self) -> str:
        """Return whether a winner beats the best free answer, too, to follow the words of its gain."""
        if self.winner is None:
            return ""
        if self.winner.is_free:
            return ", a free answer, so no search was needed"
        ended = [c for c in self.comparisons if c.variant not in self.pending]
        leads = [(c.lead, self.variant(c.variant)) for c in ended if c.lead is not None]
        free = [(d, variant) for d, variant in leads if variant.is_free]
        if not free:
            return ""
        d, strongest = min(free, key=lambda pair: pair[0].mean)
        if d.low > 0:
            return f" and the best free answer (by {self.design.size(d)})"
        name = strongest.title.removeprefix("best free answer: ")
        if d.mean >= self.design.margin:
            return f"; it is not shown to beat the free answer {name}"
        return f"; no search was needed: {name} does {'better' if d.high < 0 else 'as well'}"

    @property
    def advice(self) -> str:
        """Return what to do, in a sentence, or nothing before the verdict is final."""
        if self.final in (None, "cannot tell") or self.lead is None:
            return ""
        kind, design, lead = self.design.kind, self.design, self.lead
        untried = lead.difference.low > 0 and any(other.difference is None for other in lead.opponents)
        if kind.untimed and self.final == "undecided" and untried:
            return kind.untimed
        if self.decision is not None:
            return ""
        if self.final != "undecided":
            return kind.use if self.final == "better" else kind.keep
        if seeds := self.settling:
            spent = self.seconds and f", {format_duration(seeds * self.seconds)} of training,"
            command = kind.again.format(seeds=seeds)
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
        name = "" if self.final == "better" else f"{self.variant(lead.variant).title}: "
        return f"{name}{'. '.join(sentences)}."

    @property
    def cost(self) -> str:
        """Return what the leading finalist costs: its time, and its steps."""
        if self.lead is None or self.outcome is None or self.noise is not None:
            return ""
        sentences = ["Time not measured"]
        if (time := self.lead.time) is not None:
            equal = {"time": "Time", "epochs": "Equal epochs, time"}.get(self.design.equal, "Any time, here")
            sentences = [f"{equal} {time.mean:.2f} ({time.low:.2f} to {time.high:.2f}) of the baseline's"]
        if self.steps is not None and round(self.steps[0]) != round(self.steps[1]):
            each = "" if self.slowdown is None else f", each {self.slowdown.mean:.2f} times as long"
            sentences.append(f"{self.steps[0]:.0f} steps against {self.steps[1]:.0f}{each}")
        return f"{', '.join(sentences)}."

    @property
    def cause(self) -> str:
        """Return the cause that the trainings show, in a sentence. Empty before the verdict is final."""
        return self._explained[0]

    @property
    def next_step(self) -> str:
        """Return the most useful next step with its command, or nothing if `advice` has it."""
        step, name = self._explained[1], shell([self.search])
        if not step or self.settling is not None or self.leader is None:
            return ""
        if step == "stop":
            return f"Stop here: at this length of training, the {self.design.kind.baseline} is enough."
        if step == "sites":
            return f"Train it without each of its modules: automl confirm {name} --ablate"
        epochs = 2 * self.leader.config.training.epochs
        title, setting, value = {
            "epochs": (f"Train twice as long, {epochs} epochs", "epochs", str(epochs)),
            "equal": ("Compare after equal epochs, for the effect of a step", "equal", "epochs"),
            "larger": ("Try a larger model, where modules may cost less of a step", "backbone", "NAME"),
        }[step]
        if list(self.command[:2]) != ["automl", "search"]:
            return f"{title}: automl.run_search with {setting}={value}."
        # Of an option that is given twice, the last value counts.
        changed = [option_name(setting), value, "--name", f"{self.search}-{step}"]
        return f"{title}: {shell([*self.command, *changed])}"

    @property
    def _explained(self) -> tuple[str, Step]:
        """Return the cause and the kind of the next step."""
        if self.final is None or self.leader is None or not self.design.kind.exports:
            return "", ""
        return explain(
            Facts(
                outcome=self.final,
                equal=self.design.equal,
                margin=self.design.margin,
                slowdown=self.slowdown,
                steps=self.steps,
                rises=self.rises,
                gate=self.gate,
                modules=len(self.leader.config.model.placement),
            )
        )

    @property
    def _learning(self) -> Iterator[str]:
        """Yield how the curves ended, how far the gates opened, and what the original has, as remarks."""
        decimals = self.design.decimals
        rises = [f"{d.mean:+.{decimals}f}{d.ends(decimals)}" for d in self.rises if d is not None]
        if len(rises) == 2:
            yield (
                f"In the last quarter of training, the validation score changed by {rises[0]} "
                f"{self.design.signed}, that of the baseline by {rises[1]}."
            )
        if self.gate is not None:
            yield f"The largest gate is {self.gate:.2g}, where 0 is a module without effect."
        if self.original:
            yield f"The original, untouched: {self.original}."

    @property
    def lines(self) -> list[str]:
        """Return the verdict in at most three lines: what to do, how sure it is, what it costs."""
        first = f"{self.headline}. {self.advice}" if self.advice else self.headline
        return [line for line in (first, self.figures, self.cost) if line]

    @property
    def details(self) -> str:
        """Return how sure the verdict is, and what it costs."""
        return " ".join(self.lines[1:])

    @property
    def remarks(self) -> list[str]:
        """Return lines with reasons and the conclusions from controls, beside the table of comparisons."""
        if self.lead is None or self.outcome is None:
            return []
        if self.decision is not None:
            return self.decision.lines()
        limits = [*self._limits(self.lead), *self._learning] if self.complete else []
        return [*limits, *self._controls(self.lead)]

    def _probability(self, lead: Comparison) -> str:
        """Return p of the leading finalist, for the same level as its interval."""
        text = f"p = {lead.p_holm:.2g}"
        if self.level is not None:
            text += f" at level {self.level:.2g} of this interim analysis"
        finalists = sum(comparison.p_holm is not None for comparison in self.comparisons)
        return f"{text}, adjusted for {finalists} {self.design.kind.finalist}s" if finalists > 1 else text

    def _limits(self, lead: Comparison) -> list[str]:
        """Return the reason of an open verdict, and limits of the margin and of a gain."""
        design, d, images = self.design, lead.difference, lead.images
        lines = [self.explanation] * bool(self.explanation)
        inputs = f"{design.inputs} test inputs"
        if 0 < design.margin == design.resolution:
            lines.append(
                f"The margin is {design.margin:.3g} {design.unit}, the effect of one of the {inputs}."
            )
        if self.winner is not None and d.mean < design.margin:
            lines.append(f"The gain is below the margin of {design.margin:.3g} {design.unit}.")
        if self.winner is not None and images is not None and images[0] <= 0:
            lines.append(
                f"Test on more inputs before you generalize: the interval over seeds and "
                f"{f'these {design.inputs}' if design.inputs else 'the'} test examples contains 0."
            )
        return lines

    def _controls(self, lead: Comparison) -> list[str]:
        """Return what the other variants show about the leading finalist, and controls that stand out."""
        signed, decimals, lines = self.design.signed, self.design.decimals, []
        none_better = all(c.difference.low <= 0 for c in self.comparisons if c.role is Role.FINALIST)
        if self.pending and self.winner is not None:
            lines.append(f"Train {' and '.join(self.pending)} to learn the cause of the gain.")
        for comparison in self.comparisons:
            d = comparison.lead
            if d is None or comparison.role in (Role.PLAIN, Role.LONGER):  # in the figures
                continue
            text = f"{lead.variant} against {comparison.variant}: {d.mean:+.{decimals}f} "
            text += f"{signed} ({d.in_words(decimals)})"
            # Before all seeds are trained, each further seed would be another interim analysis.
            whole = comparison.variant not in self.pending
            if whole and self.winner is not None and d.low <= 0 and comparison.role in CONCLUSIONS:
                text += f", so {CONCLUSIONS[comparison.role]}"
            lines.append(f"{text}.")
            # It stands out if its interval is above 0, in no more time.
            time = comparison.time
            fair = self.design.equal != "time" or (time is not None and time.high <= NO_LONGER)
            stands_out = comparison.role in CONCLUSIONS and comparison.difference.low > 0 and fair
            if whole and self.complete and none_better and stands_out:
                name = f"Confirm {comparison.variant} with other seeds"
                lines.append(
                    f"{name}: it was better than the baseline, but this confirmation does not test it."
                )
        return lines

    def sentence(self, comparison: Comparison) -> str:
        """Return a variant's difference from the baseline in words."""
        d, time, design = comparison.difference, comparison.time, self.design
        signed = design.signed if design.metric.maximize else f"{design.signed},"
        images = comparison.test_interval(design.decimals)
        also = f" ({images})" if images else ""
        spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
        return (
            f"{comparison.variant}: {d.mean:+.{design.decimals}f} {signed} vs the baseline, "
            f"{d.in_words(design.decimals)}{also}, {spent}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, after words and figures of the leading finalist, which are not read."""
        lead, d = self.lead, self.lead and self.lead.difference
        shown = {
            "verdict": self.final,
            **{name: getattr(self, name) for name in ("headline", "advice", "figures", "cost", "remarks")},
            "cause": self.cause,
            "next": self.next_step,
            "winner": self.winner and self.winner.name,
            "difference": d and d.mean,
            "interval": d and d.bounds,
            "interval_inputs": lead and lead.images,
            "p": lead and lead.p_holm,
            "time": lead and lead.time,
            "seeds": len(self.used),
            "margin": self.design.margin,
            "unit": self.design.unit,
        }
        value: dict[str, Any] = redact_all(to_json(shown) | convert_fields(self))
        return value


def word_fields(design: Design, winner: str, lead: Comparison, evidence: Evidence) -> dict[str, Any]:
    """Return the values of the fields in the words of a rule. `winner` is the title of the finalist."""
    guess = ""
    if design.chance is not None:
        value, unit = design.chance.value, f" {design.unit}" * (design.unit != design.metric.name)
        guess = f"{value:.4f}{unit}" if design.metric.scale == 1 else f"{100 * value:.1f} %"
    d, time = lead.difference, lead.time
    less = time is not None and design.equal == "time" and time.high < 1 / NO_LONGER
    equal, other = "", evidence.equal
    if other is not None:
        may = other.difference is not None and other.difference.mean > 0
        equal = f"{other.name} {'may do' if may else 'does'} as well"
        if other.difference is None and lead.most_time is not None:
            equal = f"takes up to {lead.most_time:.2f} times as long"
    return {
        "winner": winner,
        "finalist": design.kind.finalist,
        "baseline": design.kind.baseline,
        "difference": design.size(d),
        "signed": f"{d.mean:+.{design.decimals}f} {design.signed}{d.ends(design.decimals)}",
        "seeds": d.signs,
        "less_time": f", in {100 * (1 - time.mean):.0f} % less time" if less and time is not None else "",
        "equal": equal,
        "count": d.count,
        "constant": evidence.constant,
        "metric": design.metric.name,
        "guess": guess,
        "margin": f"{design.margin:.3g} {design.unit}",
        "inputs": design.inputs,
        "resolution": f"{design.resolution:.2g} {design.unit}",
    }


def confirm_folder(number: int) -> str:
    """Return the folder of a confirmation in that of its search."""
    return CONFIRM_FOLDER if number == 1 else f"{CONFIRM_FOLDER}-{number}"


def read_verdict(folder: Path) -> Verdict:
    """Read `verdict.json` of the confirmation in `folder`. Raise InputError if it is damaged."""
    try:
        return read_json(Verdict, folder / VERDICT_FILE, format=FORMAT, strict=False)
    except InputError as error:
        raise InputError(f"{error}; move it away, or make it again with automl confirm") from error


@dataclass(frozen=True, kw_only=True, repr=False)
class ConfirmResult(Summary):
    """A confirmation as it stands. It shows itself in a few lines.

    Attributes:
        folder: The folder of the confirmation, with its study and checkpoints.
        verdict: The verdict.
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

    folder: Path
    verdict: Verdict
    storage: str = STORAGE
    untracked: int = 0
    user_code: Sequence[str] = ()
    logs: Mapping[str, str] = field(default_factory=dict)

    @property
    def search(self) -> str:
        """The name of the search."""
        return self.verdict.search

    @property
    def number(self) -> int:
        """The number of the confirmation of this search, from 1 on."""
        return self.verdict.confirmation

    @property
    def value(self) -> dict[str, Any]:
        """The content of `verdict.json`."""
        return self.verdict.to_json()

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        number = f" (confirmation {self.number})" if self.number > 1 else ""
        kind = self.verdict.design.kind
        yield kind.done, f"{self.search}{number}: {self.verdict.final or 'no verdict'}"
        for i, line in enumerate(self.verdict.lines):
            yield ("verdict", "figures", "cost")[i], line
        for label, line in (("cause", self.verdict.cause), ("advice", self.verdict.next_step)):
            if line:
                yield label, line
        for warning in self.verdict.warnings:
            yield "warning", warning
        yield "folder", str(self.folder)
        storage = None if self.storage == STORAGE else self.storage
        if not kind.exports:
            if self.verdict.complete:
                yield "next", call("run_report", self.search, storage=storage)
            else:
                yield "next", call("run_referee", resume=self.search, storage=storage)
        elif not self.verdict.complete:
            yield "next", call("run_confirm", self.search, storage=storage)
        else:  # Without a winner, the plain backbone is deployed.
            model = "baseline" if self.verdict.winner is None else "best"
            trust = True if self.user_code else None
            options = {model: True, "search": self.search, "storage": storage, "trust": trust}
            yield "next", call("run_export", f"exports/{self.search}", **options)
