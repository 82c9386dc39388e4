"""The verdict of a confirmation, in numbers and in words."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from automl.confirm import statistics
from automl.confirm.arms import Arm
from automl.confirm.statistics import (
    ALPHA,
    EQUAL,
    WORDS,
    Difference,
    Ratio,
    Word,
    holm,
    least_pairs,
    paired,
    pairs_needed,
)
from search.record import Role, State, TrialRecord

FEW = 10  # seeds below which a sentence says how few they are

# What it means when the winner is not better than such an arm.
_EXPLAINS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and place are not shown to matter",
}

# What it may come from that a finalist differs which has not trained equally long, or that none does.
_UNEVEN = {
    "better": "the gain may be of a longer training",
    "worse": "the loss may be of a shorter training",
    "equivalent": "the finalists are not shown to have trained as long as the baseline",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a confirmation asks, fixed before it begins.

    seeds: those that are planned, in order. equal: what the arms are given the same of, `time` or `epochs`.
    margin: the least difference that matters, in `unit`.
    sequential: stop as soon as there is an answer. metric: of the scores; maximize: whether more is better.
    scale: makes a score's difference one in `unit`.
    inputs: of the test split. chance: the score of one who always gives the same answer, where the metric is
    the share of right answers; None where it is not.
    """

    seeds: Sequence[int]
    equal: str
    margin: float
    sequential: bool
    metric: str
    maximize: bool
    scale: float
    unit: str
    inputs: int
    chance: float | None

    @property
    def resolution(self) -> float:
        """What one test image is worth, in `unit`; 0 where that is not known."""
        return self.scale / self.inputs if self.chance is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a training took: steps, and seconds of its epochs by the clock and of the processor.

    Each is None where it was not recorded for the whole training; the processor's is that on a GPU, too.
    """

    steps: float | None = None
    seconds: float | None = None
    processor_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of an arm: the score at each seed, or why there is none.

    failed: it cannot be trained with that seed, such as when its loss diverges. errors: something broke,
    which says nothing of the arm.
    costs: of the trainings that have a score. hits: which test inputs were answered right, bool `(inputs,)`,
    where that is kept. devices: names of those that trained, where they are known. counted: for one of them
    at least the ratio of times was not measured precisely.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    costs: Mapping[int, Cost] = field(default_factory=dict)
    hits: Mapping[int, np.ndarray] = field(default_factory=dict)
    devices: Mapping[int, str] = field(default_factory=dict)
    counted: bool = False

    def ended(self, seed: int) -> bool:
        return seed in self.scores or seed in self.failed or seed in self.errors


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against the baseline and, for one that is no finalist, the leading finalist against it.

    images: the interval over seeds and test images. time: how many times longer it trained than the baseline.
    Both are None where they cannot be told.
    """

    arm: Arm
    difference: Difference
    p_holm: float | None = None
    lead: Difference | None = None
    images: tuple[float, float] | None = None
    time: Ratio | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a confirmation has come to.

    word: better, worse, equivalent, undecided or cannot tell; None as long as there are fewer than two seeds.
    reason: why one cannot tell.
    complete: nothing more will come. lead: the leading finalist; it is the winner if the word is better.
    used: seeds that the verdict rests on. level: that p is held to, where one looked several times.
    needed: seeds of a new confirmation that would show the margin in four of five cases.
    """

    question: Question
    word: Word | None = None
    reason: str = ""
    complete: bool = False
    lead: Comparison | None = None
    comparisons: Sequence[Comparison] = ()
    used: Sequence[int] = ()
    level: float | None = None
    needed: int | None = None
    warnings: Sequence[str] = ()

    @property
    def winner(self) -> Arm | None:
        return self.lead.arm if self.lead is not None and self.said == "better" else None

    @property
    def said(self) -> Word | None:
        """The word, once it is the last one."""
        return self.word if self.complete else None

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.word is None or self.lead is None:
            return "No verdict: fewer than two seeds are there of the baseline and all finalists."
        question, name, d = self.question, self.lead.arm.name, self.lead.difference
        unit, margin = question.unit, question.margin
        metadata = f"{self._sure()}, {_seeds(d.count)}{_time(self.lead.time, question.equal)}"
        differs = f"{name} differs from the tuned baseline by {d.mean:+.2f} {unit} ({metadata}"
        if self.said is None:
            return f"No verdict yet, with {d.count} of {len(self.question.seeds)} seeds. So far {differs}."
        if self.said == "better":
            small = f" That is less than the margin of {margin:g} {unit}." if d.mean < margin else ""
            return f"{name} is better than the tuned baseline by {d.mean:.2f} {unit} ({metadata}.{small}"
        if self.said == "worse":
            return f"No finalist is better. The best of them, {differs}, and is worse."
        if self.said == "equivalent":
            return f"No difference that matters: {differs}, and no finalist by as much as {margin:g} {unit}."
        if self.said == "cannot tell":
            return f"Cannot tell: {self.reason}. {differs}."
        more = ""
        if self.needed is not None and self.needed > d.count:
            more = (
                f"; {self.needed} fresh seeds would be needed to see {margin:g} {unit} in four of five cases"
            )
        elif self.needed is not None:
            more = f"; one of {margin:g} {unit} would have been seen in four of five cases"
        return f"No detectable difference: {differs}{more}."

    def _sure(self) -> str:
        """How sure the leading finalist's difference is."""
        assert self.lead is not None
        d, images = self.lead.difference, self.lead.images
        sure = f"95 % CI {d.low:.2f} to {d.high:.2f}"
        if images is not None:
            sure += f", over test images too {images[0]:.2f} to {images[1]:.2f}"
        sure += f", p = {self.lead.p_holm:.2g}"
        return sure if self.level is None else f"{sure} held to {self.level:.2g} at this look"

    @property
    def remarks(self) -> list[str]:
        """What the other arms tell of the leading finalist, a sentence each."""
        if self.lead is None:
            return []
        unit, made = self.question.unit, []
        images = self.lead.images
        if self.winner is not None and images is not None and images[0] <= 0:
            made.append(
                f"It is better on these {self.question.inputs} test images. They are too few to show it for "
                f"others like them: the interval over test images too has 0 in it."
            )
        for comparison in self.comparisons:
            d = comparison.lead
            if d is None:
                continue
            text = f"{self.lead.arm.name} against {comparison.arm.name}: {d.mean:+.2f} {unit}"
            text += f" (95 % CI {d.low:.2f} to {d.high:.2f})"
            if self.winner is not None and d.low <= 0 and comparison.arm.role in _EXPLAINS:
                text += f", so that {_EXPLAINS[comparison.arm.role]}"
            made.append(text + ".")
        return made

    def to_json(self, arms: Sequence[Arm], scores: Mapping[str, Scores]) -> dict[str, Any]:
        """Plain values, with each arm's scores."""
        lead = self.lead.difference if self.lead is not None else None
        question = self.question
        return {
            "complete": self.complete,
            "verdict": self.said,
            "sentence": self.sentence,
            "remarks": self.remarks,
            "winner": self.winner.name if self.winner else None,
            "finalist": self.lead.arm.name if self.lead else None,
            "difference": lead and lead.mean,
            "interval": lead and [lead.low, lead.high],
            "interval_images": self.lead and self.lead.images,
            "time": self.lead and _ratio(self.lead.time),
            "equal": question.equal,
            "p": self.lead and self.lead.p_holm,
            "seeds": len(self.used),
            "seeds_needed": self.needed,
            "margin": question.margin,
            "unit": question.unit,
            "metric": question.metric,
            "split": "test",
            "inputs": question.inputs,
            "chance": question.chance,
            "resolution": question.resolution,
            "sequential": question.sequential,
            "comparisons": [self._comparison(comparison) for comparison in self.comparisons],
            "arms": [
                {
                    **arm.to_json(),
                    "scores": {str(seed): value for seed, value in scores[arm.name].scores.items()},
                    "failed": {str(seed): reason for seed, reason in scores[arm.name].failed.items()},
                    "costs": {str(seed): vars(cost) for seed, cost in scores[arm.name].costs.items()},
                }
                for arm in arms
            ],
            "warnings": list(self.warnings),
        }

    def _comparison(self, comparison: Comparison) -> dict[str, Any]:
        d, lead, unit = comparison.difference, comparison.lead, self.question.unit
        images, time = comparison.images, comparison.time
        also = "" if images is None else f" (over test images too {images[0]:.2f} to {images[1]:.2f})"
        spent = "time not measured" if time is None else f"{time.mean:.2f} times its training time"
        return {
            "arm": comparison.arm.name,
            "role": str(comparison.arm.role),
            "difference": d.mean,
            "interval": [d.low, d.high],
            "interval_images": images,
            "time": _ratio(time),
            "p": d.p,
            "p_holm": comparison.p_holm,
            "lead": lead and {"difference": lead.mean, "interval": [lead.low, lead.high], "p": lead.p},
            "sentence": f"{comparison.arm.name}: {d.mean:+.2f} {unit} to the baseline, "
            f"95 % CI {d.low:.2f} to {d.high:.2f}{also}, {spent}",
        }


def _seeds(count: int) -> str:
    return f"with only {count} seeds" if count < FEW else f"{count} paired seeds"


def _time(time: Ratio | None, equal: str) -> str:
    """The end of what is in brackets, and what comes after it: of the time, what was measured."""
    if time is None:
        return f"{', equal epochs' if equal == 'epochs' else ''}, time not measured)"
    if equal == "epochs":
        return f", equal epochs, at {time.mean:.2f} times the baseline's training time)"
    return ", equal time)" if time.equal else f") {_spent(time)}"


def _spent(time: Ratio) -> str:
    return (
        f"at {time.mean:.2f} times the baseline's training time (95 % CI {time.low:.2f} to {time.high:.2f})"
    )


def _ratio(time: Ratio | None) -> dict[str, Any] | None:
    return None if time is None else {"ratio": time.mean, "interval": [time.low, time.high]}


def cost(record: TrialRecord) -> Cost:
    """What a training took, from the records of its epochs."""

    def total(name: str) -> float | None:
        if not record.history or any(name not in metrics for metrics in record.history):
            return None
        return sum(metrics[name] for metrics in record.history)

    steps = record.history[-1].get("steps") if record.history else None
    return Cost(steps=steps, seconds=total("seconds"), processor_seconds=total("processor_seconds"))


def collect(
    arms: Iterable[Arm],
    records: Iterable[TrialRecord],
    metric: str,
    seeds: Sequence[int],
    hits: Callable[[TrialRecord], np.ndarray | None] = lambda record: None,
) -> dict[str, Scores]:
    """The scores of each arm at these seeds, from the trials that have ended.

    hits: which test inputs a finished trial has answered right, None where that is not known.
    """
    scores: dict[str, dict[int, float]] = {arm.name: {} for arm in arms}
    failed: dict[str, dict[int, str]] = {name: {} for name in scores}
    errors: dict[str, dict[int, str]] = {name: {} for name in scores}
    costs: dict[str, dict[int, Cost]] = {name: {} for name in scores}
    right: dict[str, dict[int, np.ndarray]] = {name: {} for name in scores}
    devices: dict[str, dict[int, str]] = {name: {} for name in scores}
    counted = set()
    for record in records:
        seed = record.config.seed
        if record.arm not in scores or seed not in seeds:
            continue
        if record.state is State.COMPLETE:
            scores[record.arm][seed] = record.value(metric)
            costs[record.arm][seed] = cost(record)
            if record.device:
                devices[record.arm][seed] = record.device
            if (answers := hits(record)) is not None:
                right[record.arm][seed] = answers
            if record.profile.get("time_ratio_counted"):
                counted.add(record.arm)
        elif record.state is State.INFEASIBLE:
            failed[record.arm][seed] = record.reason or "it cannot be trained"
        elif record.state is State.ERROR:
            errors[record.arm][seed] = record.reason or "an error"
    return {
        name: Scores(
            scores=scores[name],
            failed=failed[name],
            errors={seed: why for seed, why in errors[name].items() if seed not in scores[name]},
            costs=costs[name],
            hits=right[name],
            devices=devices[name],
            counted=name in counted,
        )
        for name in scores
    }


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What is said after some seeds. lead: the leading finalist. used: seeds at which all are compared.

    reason: why one cannot tell. times: of those that stand, to the baseline's.
    """

    word: Word
    reason: str
    lead: int
    standing: Sequence[Arm]
    differences: Sequence[Difference]
    times: Sequence[Ratio | None]
    used: Sequence[int]
    level: float | None


def judge(question: Question, arms: Sequence[Arm], scores: Mapping[str, Scores]) -> Verdict:
    """The verdict on the finalists among `arms` against the first one, the baseline, from what there is.

    A seed counts once it has ended for the baseline and all finalists. A finalist that cannot be trained
    with one of them drops out: it cannot win, and takes nothing from the others. What comes in after a
    sequential confirmation has been decided changes nothing.
    """
    baseline, *others = arms
    finalists = [arm for arm in others if arm.role is Role.FINALIST]
    first = min(least_pairs(ALPHA / len(finalists)), len(question.seeds))
    looks = tuple(range(first, len(question.seeds) + 1))
    seen: list[int] = []
    found: _Look | None = None
    decided = False
    for seed in question.seeds:
        if not all(scores[arm.name].ended(seed) for arm in (baseline, *finalists)):
            break
        seen.append(seed)
        decided = len(seen) == len(question.seeds)
        if decided or (question.sequential and len(seen) in looks):
            found = _look(question, baseline, finalists, scores, seen, looks if question.sequential else ())
            if question.sequential and found is not None and found.word in ("better", "worse", "equivalent"):
                decided = True
                break
    if not decided:  # how it stands; no look is spent on it
        found = _look(question, baseline, finalists, scores, seen, ())
    warnings = [
        f"{arm.name} failed with seed {seed}: {reason}"
        for arm in arms
        for seed, reason in {**scores[arm.name].failed, **scores[arm.name].errors}.items()
    ]
    unlike = [
        seed for seed in seen if len({s.devices[seed] for s in scores.values() if seed in s.devices}) > 1
    ]
    if unlike:
        names = sorted({device for s in scores.values() for device in s.devices.values()})
        warnings.append(
            f"the arms of {len(unlike)} seeds trained on unlike devices ({', '.join(names)}), whose times do "
            f"not compare; a --label of the search keeps its trials on nodes of one kind"
        )
    counted = [arm.name for arm in arms if scores[arm.name].counted]
    if counted and question.equal == "time":
        warnings.append(
            f"the ratio of times could not be measured precisely for every training, and counted work helped "
            f"out: {', '.join(counted)}"
        )
    if found is None:
        return Verdict(question=question, complete=decided, warnings=warnings)
    least = least_pairs(ALPHA / len(finalists))
    undecided = decided and found.word == "undecided"
    if undecided and len(found.used) < least:
        warnings.append(
            f"{len(found.used)} seeds with {len(finalists)} finalists can show no difference, however large; "
            f"it takes {least}"
        )
    ps = holm([d.p for d in found.differences], family=len(finalists))
    comparisons = [
        Comparison(
            arm=arm,
            difference=d,
            p_holm=p,
            images=_images(question, d, scores[arm.name], scores[baseline.name], found.used),
            time=time,
        )
        for arm, d, p, time in zip(found.standing, found.differences, ps, found.times, strict=True)
    ]
    lead = comparisons[found.lead]
    for arm in others:
        both = [seed for seed in found.used if seed in scores[arm.name].scores]
        if arm.role is not Role.FINALIST and len(both) >= 2:
            d = _difference(question, scores, arm, baseline, both)
            comparisons.append(
                Comparison(
                    arm=arm,
                    difference=d,
                    lead=_difference(question, scores, lead.arm, arm, both),
                    images=_images(question, d, scores[arm.name], scores[baseline.name], both),
                    time=time_ratio(scores[arm.name], scores[baseline.name], both),
                )
            )
    return Verdict(
        question=question,
        word=found.word,
        reason=found.reason,
        complete=decided,
        lead=lead,
        comparisons=comparisons,
        used=found.used,
        level=found.level,
        needed=_needed(question, lead.difference, len(finalists), looks) if undecided else None,
        warnings=warnings,
    )


def _look(
    question: Question,
    baseline: Arm,
    finalists: Sequence[Arm],
    scores: Mapping[str, Scores],
    seen: Sequence[int],
    looks: tuple[int, ...],
) -> _Look | None:
    """What can be said from the seeds `seen`. looks: at how many seeds one looks, if more than once.

    None when fewer than two seeds are left to compare.
    """
    standing = [arm for arm in finalists if not any(seed in scores[arm.name].failed for seed in seen)]
    competing = [baseline, *standing]
    used = [seed for seed in seen if all(seed in scores[arm.name].scores for arm in competing)]
    if not standing or len(used) < 2:
        return None

    def level(alpha: float) -> float:
        return statistics.nominal_levels(looks, alpha)[looks.index(len(seen))] if looks else alpha

    differences = [_difference(question, scores, arm, baseline, used, alpha=level(ALPHA)) for arm in standing]
    times = [time_ratio(scores[arm.name], scores[baseline.name], used) for arm in standing]
    fair = [_fair(time) if question.equal == "time" else WORDS for time in times]
    word, lead = statistics.verdict(differences, level=level, family=len(finalists), fair=fair)
    reason = ""
    if word == "cannot tell":
        would, _ = statistics.verdict(differences, level=level, family=len(finalists))
        reason = _UNEVEN[would]
        if None in times:
            reason = f"training times were not measured, and {reason}"
    if nothing := _guessing(question, [scores[arm.name] for arm in competing], used):
        word, reason = "cannot tell", nothing
    elif 0 < question.margin < question.resolution and word in ("equivalent", "undecided"):
        word = "cannot tell"
        reason = (
            f"the margin of {question.margin:g} {question.unit} is less than one of the {question.inputs} "
            f"test images is worth, {question.resolution:.2g} {question.unit}"
        )
    return _Look(
        word=word,
        reason=reason,
        lead=lead,
        standing=standing,
        differences=differences,
        times=times,
        used=used,
        # Of p as Holm adjusts it, which multiplies where the levels divide.
        level=len(finalists) * level(ALPHA / len(finalists)) if looks else None,
    )


def time_ratio(ours: Scores, theirs: Scores, seeds: Sequence[int]) -> Ratio | None:
    """How many times longer an arm trained than another with the same seeds; None where it is not known.

    The processor's time counts where all trainings have it, which a busy machine hardly changes.
    """
    for name in ("processor_seconds", "seconds"):
        first, second = (
            [getattr(arm.costs.get(seed), name, None) or 0.0 for seed in seeds] for arm in (ours, theirs)
        )
        if len(seeds) >= 2 and all(seconds > 0 for seconds in first + second):
            return statistics.paired_ratio(first, second)
    return None


def _fair(time: Ratio | None) -> Collection[Word]:
    """What may be said of an arm, as its time was to be the baseline's."""
    if time is None:
        return ()
    fair: list[Word] = []
    if time.high <= 1 + EQUAL:
        fair.append("better")
    if time.low >= 1 - EQUAL:
        fair.append("worse")
    return [*fair, "equivalent"] if time.equal else fair


def _guessing(question: Question, arms: Iterable[Scores], seeds: Sequence[int]) -> str:
    """Whether all arms may be guessing, in words; empty where one is not, or there is no telling."""
    chance = question.chance
    if chance is None or any(
        statistics.above_chance([arm.scores[seed] for seed in seeds], chance, question.inputs) for arm in arms
    ):
        return ""
    return (
        f"no arm is shown to do better than the one answer that is right for most of the test images, "
        f"{100 * chance:.1f} % of them"
    )


def _images(
    question: Question, d: Difference, ours: Scores, theirs: Scores, seeds: Sequence[int]
) -> tuple[float, float] | None:
    """The interval of a difference over seeds and test images; None without the answers to each image."""
    answers = [[arm.hits.get(seed) for seed in seeds] for arm in (ours, theirs)]
    if any(hits is None or len(hits) != question.inputs for arm in answers for hits in arm):
        return None
    first, second = (np.array(arm, np.int8) for arm in answers)
    reach = question.scale * statistics.reach_of_images(first - second)
    return min(d.low, d.mean - reach), max(d.high, d.mean + reach)


def _difference(
    question: Question,
    scores: Mapping[str, Scores],
    arm: Arm,
    other: Arm,
    seeds: Sequence[int],
    alpha: float = ALPHA,
) -> Difference:
    sign = question.scale if question.maximize else -question.scale
    ours, theirs = scores[arm.name].scores, scores[other.name].scores
    return paired(
        [sign * (ours[s] - theirs[s]) for s in seeds],
        margin=question.margin,
        resolution=question.resolution,
        alpha=alpha,
    )


def _needed(question: Question, d: Difference, finalists: int, looks: tuple[int, ...]) -> int | None:
    """Seeds that show the margin in four of five cases, tested as the last look of this confirmation was."""
    if question.margin <= 0 or d.sd is None:
        return None
    alpha = ALPHA / finalists
    if question.sequential:
        alpha = statistics.nominal_levels(looks, alpha)[-1]
    return pairs_needed(question.margin, d.sd, alpha)
