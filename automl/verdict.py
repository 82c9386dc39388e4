"""The verdict of a confirmation, in numbers and in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from automl import statistics
from automl.arms import Arm
from automl.statistics import ALPHA, Difference, Level, holm, least_pairs, paired, pairs_needed
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
    """Of an arm: the score at each seed, or why there is none."""

    scores: Mapping[int, float] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)


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
    used: seeds that the verdict rests on. needed: further seeds that would show `to_see`.
    """

    question: Question
    word: statistics.Word | None = None
    complete: bool = False
    lead: Comparison | None = None
    comparisons: Sequence[Comparison] = ()
    used: Sequence[int] = ()
    needed: int | None = None
    to_see: float | None = None
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
        sure = f"95 % CI {d.low:.2f} to {d.high:.2f}, p = {d.p:.2g}"
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
        if self.needed is not None:
            seeds = f"{self.needed} more seed{'s' if self.needed > 1 else ''}"
            more = f"; {seeds} would be needed to see {self.to_see:.2g} {unit} in four of five cases"
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
            "p": lead and lead.p,
            "seeds": len(self.used),
            "seeds_needed": self.needed,
            "to_see": self.to_see,
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
    for record in records:
        if record.arm not in scores or record.config.seed not in seeds:
            continue
        if record.state is State.COMPLETE:
            scores[record.arm][record.config.seed] = record.value(metric)
        elif record.state in (State.INFEASIBLE, State.ERROR):
            failed[record.arm][record.config.seed] = record.reason or str(record.state)
    return {
        name: Scores(
            scores=scores[name],
            failed={seed: why for seed, why in failed[name].items() if seed not in scores[name]},
        )
        for name in scores
    }


def judge(question: Question, arms: Sequence[Arm], scores: Mapping[str, Scores]) -> Verdict:
    """The verdict on the first of `arms`, the baseline, against the finalists, from what there is.

    A seed counts once the baseline and all finalists have it. One that a finalist failed counts for none of
    them, and such a finalist cannot win: what diverges is not better.
    """
    baseline, *others = arms
    finalists = [arm for arm in others if arm.role is Role.FINALIST]
    competing = [baseline, *finalists]
    used: list[int] = []
    looked = ended = 0
    first = least_pairs(ALPHA / len(finalists))
    looks = tuple(range(min(first, len(question.seeds)), len(question.seeds) + 1))
    result: tuple[statistics.Word, int, list[Difference]] | None = None
    for seed in question.seeds:
        if any(
            seed not in scores[arm.name].scores and seed not in scores[arm.name].failed for arm in competing
        ):
            break
        ended += 1
        if all(seed in scores[arm.name].scores for arm in competing):
            used.append(seed)
        last = ended == len(question.seeds)
        if len(used) < 2 or not (last or (question.sequential and ended in looks)):
            continue
        result = _look(question, baseline, finalists, scores, used, looks, ended)
        looked = ended
        if question.sequential and result[0] != "undecided":
            break
    if result is None and len(used) >= 2:  # how it stands; no look is spent on it
        result = _look(question, baseline, finalists, scores, used, looks, None)
    warnings = [
        f"{arm.name} failed with seed {seed}: {reason}"
        for arm in arms
        for seed, reason in scores[arm.name].failed.items()
    ]
    over = ended == len(question.seeds)
    if result is None:
        return Verdict(question=question, complete=over, used=used, warnings=warnings)
    word, index, differences = result
    decided = looked > 0 and (over or (question.sequential and word != "undecided"))
    lead = finalists[index]
    adjusted = holm([d.p for d in differences])
    comparisons = [
        Comparison(arm=arm, difference=d, p_holm=p)
        for arm, d, p in zip(finalists, differences, adjusted, strict=True)
    ]
    for arm in others:
        if arm.role is not Role.FINALIST:
            both = [seed for seed in used if seed in scores[arm.name].scores]
            if len(both) >= 2:
                comparisons.append(
                    Comparison(
                        arm=arm,
                        difference=_difference(question, scores, arm, baseline, both),
                        lead=_difference(question, scores, lead, arm, both),
                    )
                )
    needed = to_see = None
    if decided and word == "undecided":
        needed, to_see = _needed(question, differences[index], len(finalists))
    if decided and word == "undecided" and len(used) < first:
        warnings.append(
            f"{len(used)} seeds with {len(finalists)} finalists can show no difference, however large; it "
            f"takes {first}"
        )
    return Verdict(
        question=question,
        word=word,
        complete=decided,
        lead=comparisons[index],
        comparisons=comparisons,
        used=used,
        needed=needed,
        to_see=to_see,
        warnings=warnings,
    )


def _look(
    question: Question,
    baseline: Arm,
    finalists: Sequence[Arm],
    scores: Mapping[str, Scores],
    used: Sequence[int],
    looks: tuple[int, ...],
    look: int | None,
) -> tuple[statistics.Word, int, list[Difference]]:
    """The word, the index of the leading finalist and all differences. look: which of `looks` it is."""
    level: Level = lambda alpha: alpha  # noqa: E731
    if question.sequential and look is not None:
        level = lambda alpha: statistics.nominal_levels(looks, alpha)[looks.index(look)]  # noqa: E731
    differences = []
    for arm in finalists:
        d = _difference(question, scores, arm, baseline, used, alpha=level(ALPHA))
        if scores[arm.name].failed:
            d = Difference(**{**vars(d), "p": 1.0, "p_margin": 1.0})
        differences.append(d)
    word, index = statistics.verdict(differences, level=level)
    return word, index, differences


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


def _needed(question: Question, d: Difference, finalists: int) -> tuple[int | None, float | None]:
    """Further seeds, and the difference that they would show: the margin, or less if that is not it."""
    for to_see in (question.margin, abs(d.mean)):
        if to_see > 0 and d.sd is not None:
            pairs = pairs_needed(to_see, d.sd, ALPHA / finalists)
            if pairs is not None and pairs > d.count:
                return pairs - d.count, to_see
    return None, None
