"""The verdict of a confirmation, in numbers and in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from automl import statistics
from automl.arms import Arm
from automl.statistics import ALPHA, Difference, holm, least_pairs, paired, pairs_needed
from search.record import Role, State, TrialRecord

# What it means when the winner is not better than such an arm.
_EXPLAINS = {
    Role.CONTROL: "the gain is not shown to come from attention",
    Role.RANDOM: "its type and place are not shown to matter",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a confirmation asks, fixed before it begins.

    seeds: those that are planned, in order. equal: what the arms have the same of, in words.
    margin: the least difference that matters, in `unit`.
    sequential: stop as soon as there is an answer. metric: of the scores; maximize: whether more is better.
    scale: makes a score's difference one in `unit`.
    """

    seeds: Sequence[int]
    equal: str
    margin: float
    sequential: bool
    metric: str
    maximize: bool
    scale: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of an arm: the score at each seed, or why there is none.

    failed: it cannot be trained with that seed, such as when its loss diverges. errors: something broke,
    which says nothing of the arm.
    """

    scores: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)

    def ended(self, seed: int) -> bool:
        return seed in self.scores or seed in self.failed or seed in self.errors


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """An arm against the baseline and, for one that is no finalist, the leading finalist against it."""

    arm: Arm
    difference: Difference
    p_holm: float | None = None
    lead: Difference | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a confirmation has come to.

    word: better, worse, equivalent or undecided; None as long as there are fewer than two seeds.
    complete: nothing more will come. lead: the leading finalist; it is the winner if the word is better.
    used: seeds that the verdict rests on. level: that p is held to, where one looked several times.
    needed: seeds of a new confirmation that would show the margin in four of five cases.
    """

    question: Question
    word: statistics.Word | None = None
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
    def said(self) -> statistics.Word | None:
        """The word, once it is the last one."""
        return self.word if self.complete else None

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.word is None or self.lead is None:
            return "No verdict: fewer than two seeds are there of the baseline and all finalists."
        question, name, d = self.question, self.lead.arm.name, self.lead.difference
        unit, margin = question.unit, question.margin
        sure = f"95 % CI {d.low:.2f} to {d.high:.2f}, p = {self.lead.p_holm:.2g}"
        if self.level is not None:
            sure += f" held to {self.level:.2g} at this look"
        about = f"{sure}, {d.count} paired seeds, {question.equal}"
        differs = f"{name} differs from the tuned baseline by {d.mean:+.2f} {unit} ({about})"
        if self.said is None:
            return f"No verdict yet, with {d.count} of {len(self.question.seeds)} seeds. So far {differs}."
        if self.said == "better":
            small = f" That is less than the margin of {margin:g} {unit}." if d.mean < margin else ""
            return f"{name} is better than the tuned baseline by {d.mean:.2f} {unit} ({about}).{small}"
        if self.said == "worse":
            return f"No finalist is better. The best of them, {differs}, and is worse."
        if self.said == "equivalent":
            return f"No difference that matters: {differs}, and no finalist by as much as {margin:g} {unit}."
        more = ""
        if self.needed is not None and self.needed > d.count:
            more = (
                f"; {self.needed} fresh seeds would be needed to see {margin:g} {unit} in four of five cases"
            )
        elif self.needed is not None:
            more = f"; one of {margin:g} {unit} would have been seen in four of five cases"
        return f"No detectable difference: {differs}{more}."

    @property
    def remarks(self) -> list[str]:
        """What the other arms tell of the leading finalist, a sentence each."""
        if self.lead is None:
            return []
        unit, made = self.question.unit, []
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
            "p": self.lead and self.lead.p_holm,
            "seeds": len(self.used),
            "seeds_needed": self.needed,
            "margin": question.margin,
            "unit": question.unit,
            "metric": question.metric,
            "split": "test",
            "sequential": question.sequential,
            "comparisons": [self._comparison(comparison) for comparison in self.comparisons],
            "arms": [
                {
                    **arm.to_json(),
                    "scores": {str(seed): value for seed, value in scores[arm.name].scores.items()},
                    "failed": {str(seed): reason for seed, reason in scores[arm.name].failed.items()},
                }
                for arm in arms
            ],
            "warnings": list(self.warnings),
        }

    def _comparison(self, comparison: Comparison) -> dict[str, Any]:
        d, lead, unit = comparison.difference, comparison.lead, self.question.unit
        return {
            "arm": comparison.arm.name,
            "role": str(comparison.arm.role),
            "difference": d.mean,
            "interval": [d.low, d.high],
            "p": d.p,
            "p_holm": comparison.p_holm,
            "lead": lead and {"difference": lead.mean, "interval": [lead.low, lead.high], "p": lead.p},
            "sentence": f"{comparison.arm.name}: {d.mean:+.2f} {unit} to the baseline, "
            f"95 % CI {d.low:.2f} to {d.high:.2f}",
        }


def collect(
    arms: Iterable[Arm], records: Iterable[TrialRecord], metric: str, seeds: Sequence[int]
) -> dict[str, Scores]:
    """The scores of each arm at these seeds, from the trials that have ended."""
    scores: dict[str, dict[int, float]] = {arm.name: {} for arm in arms}
    failed: dict[str, dict[int, str]] = {name: {} for name in scores}
    errors: dict[str, dict[int, str]] = {name: {} for name in scores}
    for record in records:
        seed = record.config.seed
        if record.arm not in scores or seed not in seeds:
            continue
        if record.state is State.COMPLETE:
            scores[record.arm][seed] = record.value(metric)
        elif record.state is State.INFEASIBLE:
            failed[record.arm][seed] = record.reason or "it cannot be trained"
        elif record.state is State.ERROR:
            errors[record.arm][seed] = record.reason or "an error"
    return {
        name: Scores(
            scores=scores[name],
            failed=failed[name],
            errors={seed: why for seed, why in errors[name].items() if seed not in scores[name]},
        )
        for name in scores
    }


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What is said after some seeds. lead: the leading finalist. used: seeds at which all are compared."""

    word: statistics.Word
    lead: int
    standing: Sequence[Arm]
    differences: Sequence[Difference]
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
            if question.sequential and found is not None and found.word != "undecided":
                decided = True
                break
    if not decided:  # how it stands; no look is spent on it
        found = _look(question, baseline, finalists, scores, seen, ())
    warnings = [
        f"{arm.name} failed with seed {seed}: {reason}"
        for arm in arms
        for seed, reason in {**scores[arm.name].failed, **scores[arm.name].errors}.items()
    ]
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
        Comparison(arm=arm, difference=d, p_holm=p)
        for arm, d, p in zip(found.standing, found.differences, ps, strict=True)
    ]
    lead = comparisons[found.lead]
    for arm in others:
        both = [seed for seed in found.used if seed in scores[arm.name].scores]
        if arm.role is not Role.FINALIST and len(both) >= 2:
            comparisons.append(
                Comparison(
                    arm=arm,
                    difference=_difference(question, scores, arm, baseline, both),
                    lead=_difference(question, scores, lead.arm, arm, both),
                )
            )
    return Verdict(
        question=question,
        word=found.word,
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
    word, lead = statistics.verdict(differences, level=level, family=len(finalists))
    return _Look(
        word=word,
        lead=lead,
        standing=standing,
        differences=differences,
        used=used,
        # Of p as Holm adjusts it, which multiplies where the levels divide.
        level=len(finalists) * level(ALPHA / len(finalists)) if looks else None,
    )


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
    return paired([sign * (ours[s] - theirs[s]) for s in seeds], margin=question.margin, alpha=alpha)


def _needed(question: Question, d: Difference, finalists: int, looks: tuple[int, ...]) -> int | None:
    """Seeds that show the margin in four of five cases, tested as the last look of this confirmation was."""
    if question.margin <= 0 or d.sd is None:
        return None
    alpha = ALPHA / finalists
    if question.sequential:
        alpha = statistics.nominal_levels(looks, alpha)[-1]
    return pairs_needed(question.margin, d.sd, alpha)
