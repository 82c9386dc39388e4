"""Judge the finalists of a confirmation from the scores so far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from statistics import fmean

from automl.base.lazy import numpy as np
from automl.base.units import pluralize
from automl.judge import statistics
from automl.judge.decision import MAX_PAIRS, detectable, holm_factors, nominal_levels, pairs_needed
from automl.judge.design import Design
from automl.judge.rules import Evidence, Opponent, Rule, decide
from automl.judge.scores import Scores, most_time, time_ratio, unequal_failures
from automl.judge.statistics import ALPHA, NO_LONGER, Difference, Ratio, count_failures, least_pairs, paired
from automl.judge.variants import CONTROL_ROLES, Variant, lengthen
from automl.judge.verdict import Comparison, TrainedVariant, Verdict, word_fields
from search.record import Role

CONSTANT = 5  # number of equal scores that show that a command ignores its seed


def judge(design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
    """Return the verdict on the finalists against the baseline, the first of `variants`.

    A seed counts once it has ended for the baseline and all finalists. A finalist that cannot be trained with
    a seed drops out. It cannot win, and does not change the results of the others. Scores that arrive after a
    sequential confirmation has stopped change nothing.

    Code of the user may fail because of its score. So a crash leaves a verdict on such trainings open, and if
    it is tried again, the pair supports nothing. Otherwise code could end early wherever its score is low.

    If a finalist beats the baseline, the verdict waits for the scores of its other opponents.
    """
    return Judge(design, variants, scores).judge()


@dataclass(frozen=True, kw_only=True)
class _Analysis:
    """Result of an analysis after some seeds.

    Attributes:
        used: The seeds at which all are compared.
        finalists: The finalists that have not dropped out.
        awaited: The opponents whose scores are needed to call a finalist better, or equivalent.
        level: The significance level of an interim analysis, or None without these.
    """

    used: Sequence[int]
    finalists: Sequence[Variant]
    evidence: Evidence
    rule: Rule
    awaited: Sequence[Variant]
    level: float | None


@dataclass(frozen=True)
class Judge:
    """Judge the finalists by the rules of `automl.judge.rules`."""

    design: Design
    variants: Sequence[Variant]
    scores: Mapping[str, Scores]

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    @cached_property
    def finalists(self) -> list[Variant]:
        return [variant for variant in self.variants if variant.role is Role.FINALIST]

    @cached_property
    def plain(self) -> dict[str, Variant]:
        """Plain variants with the finalists' hyperparameters by name, without the baseline."""
        return {variant.name: variant for variant in self.variants[1:] if variant.role is Role.PLAIN}

    @property
    def trained(self) -> list[TrainedVariant]:
        """The variants with their scores."""
        return [TrainedVariant(**vars(v), **vars(self.scores[v.name])) for v in self.variants]

    @cached_property
    def least(self) -> int:
        """Least number of seeds that can show a difference."""
        return least_pairs(ALPHA / len(self.finalists))

    @property
    def failed_attempts(self) -> dict[str, int]:
        """Number of failed trainings by variant, without those that have none."""
        counts = {v.name: sum(self.scores[v.name].failed_attempts.values()) for v in self.variants}
        return {name: count for name, count in counts.items() if count}

    @cached_property
    def analyses(self) -> tuple[int, ...]:
        """Numbers of seeds at which interim analyses are made. Empty if only the final one is made."""
        planned = len(self.design.seeds)
        is_interim = self.design.sequential and self.least < planned
        return tuple(range(self.least, planned + 1)) if is_interim else ()

    @property
    def last_level(self) -> float:
        """Level of a difference in the last analysis."""
        alpha = ALPHA / len(self.finalists)
        return nominal_levels(self.analyses, alpha)[-1] if self.analyses else alpha

    def judge(self) -> Verdict:
        ended = list(takewhile(self._has_ended, self.design.seeds))
        seen, awaited, is_final = ended, [], False
        analysis: _Analysis | None = None
        for count in self.analyses or (len(self.design.seeds),):
            if count > len(ended):
                break
            seen = ended[:count]
            analysis = self._analyse(seen, self.analyses)
            awaited = list(analysis.awaited) if analysis is not None else []
            stops = analysis is not None and analysis.rule.stops
            is_final = not awaited and (stops or count == len(self.design.seeds))
            if is_final or awaited:
                break
        if not is_final:  # This is an intermediate state, not an interim analysis.
            seen = seen if awaited else ended
            analysis = self._analyse(seen, ())
        warnings = self.warnings(seen)
        if analysis is None:
            failed = self.failed_attempts
            return Verdict(
                design=self.design,
                complete=is_final,
                variants=self.trained,
                warnings=warnings,
                failed_attempts=failed,
            )
        verdict = self._verdict(analysis, awaited, is_final=is_final)
        return replace(verdict, warnings=[*warnings, *self._doubts(analysis, verdict)])

    def warnings(self, seen: Sequence[int]) -> list[str]:
        """Return the failed runs, and doubts about the times at the seeds `seen`."""
        return [*self._failures(), *self._unequal_trainings(seen)]

    def _has_ended(self, seed: int) -> bool:
        competing = (self.baseline, *self.finalists)
        return all(self._ended(self.scores[variant.name], seed) for variant in competing)

    def _ended(self, scores: Scores, seed: int) -> bool:
        return scores.ended(seed) and not (self.design.kind.own and seed in scores.errors)

    def _analyse(self, seen: Sequence[int], analyses: tuple[int, ...]) -> _Analysis | None:
        """Return the result after the seeds `seen`, or None if fewer than two seeds can be compared."""
        # `analyses` are the numbers of seeds of interim analyses, of which this is one, or empty.
        scores, family = self.scores, len(self.finalists)
        standing = [
            variant
            for variant in self.finalists
            if not any(seed in scores[variant.name].failed for seed in seen)
        ]
        competing = [self.baseline, *standing]
        used = [seed for seed in seen if all(seed in scores[variant.name].scores for variant in competing)]
        if not standing or len(used) < 2:
            return None

        def level(alpha: float) -> float:
            return nominal_levels(analyses, alpha)[analyses.index(len(seen))] if analyses else alpha

        limits = [self._most_time(variant, used, level(ALPHA)) for variant in standing]
        fields = [self._opponents(*each) for each in zip(standing, limits, strict=True)]
        evidence = Evidence(
            differences=[self._difference(variant, self.baseline, used) for variant in standing],
            opponents=[
                [self.meet(variant, other, used) for other in others]
                for variant, others in zip(standing, fields, strict=True)
            ],
            untimed=[i for i, limit in enumerate(limits) if limit is None],
            family=family,
            level=level,
            constant=self.constant(competing, used) if len(used) >= CONSTANT else "",
            is_guessing=self._is_guessing(competing, used),
            is_coarse=0 < self.design.margin < self.design.resolution,
        )
        awaited = {
            variant.name: variant
            for i, others in enumerate(fields)
            for variant, opponent in zip(others, evidence.opponents[i], strict=True)
            if variant is not None and not self._is_whole(variant.name, used)
            if i in evidence.ahead or (evidence.is_near and opponent.is_baseline)
        }
        return _Analysis(
            used=used,
            finalists=standing,
            evidence=evidence,
            rule=decide(evidence),
            awaited=list(awaited.values()),
            # The level of the adjusted p: Holm's factors multiply p instead of dividing the level.
            level=family * level(ALPHA / family) if analyses else None,
        )

    def _verdict(self, analysis: _Analysis, awaited: Sequence[Variant], *, is_final: bool) -> Verdict:
        evidence, rule, used = analysis.evidence, analysis.rule, analysis.used
        finalists = self._finalists(analysis)
        lead, leader = finalists[evidence.lead], analysis.finalists[evidence.lead]
        scores, baseline = self.scores[leader.name], self.scores[self.baseline.name]
        # More seeds settle what is not shown yet: the difference from the baseline, or from an opponent.
        equal = evidence.equal if evidence.lead in evidence.ahead else None
        unsure = lead.difference if equal is None else equal.difference
        settling = shown = None
        if (
            is_final
            and rule.outcome == "undecided"
            and unsure is not None
            and unsure.sd is not None
            and (equal is None or unsure.mean > 0)
        ):
            sizes = (self.design.margin, abs(unsure.mean))
            needed = [pairs_needed(size, unsure.sd, self.last_level) if size > 0 else None for size in sizes]
            least = [max(count, len(used) + 1, self.least) for count in needed if count is not None]
            settling = next((count for count in sorted(least) if count <= MAX_PAIRS), None)
            shown = detectable(unsure.sd, MAX_PAIRS, self.last_level)
        steps = (scores.mean_cost("steps", used), baseline.mean_cost("steps", used))
        costs = [each.costs.get(seed) for each in (scores, baseline) for seed in used]
        seconds = [cost.seconds for cost in costs if cost is not None and cost.seconds is not None]
        # A step is compared if both have as many inputs.
        inputs = {getattr(v.config.training, "batch_size", None) for v in (leader, self.baseline)}
        words = word_fields(self.design, leader.title, lead, evidence)
        for i, variant in enumerate(analysis.finalists):
            if variant.is_free and variant is not leader:
                finalists[i] = replace(finalists[i], lead=self._difference(leader, variant, used))
        return Verdict(
            design=self.design,
            outcome=rule.outcome,
            words=rule.words.format(**words),
            explanation=rule.explanation.format(**words),
            complete=is_final,
            finalist=leader.name,
            comparisons=[*finalists, *self._others(leader, used)],
            variants=self.trained,
            used=used,
            level=analysis.level,
            settling=settling,
            shown=shown,
            seconds=2 * fmean(seconds) if seconds else None,
            steps=None if steps[0] is None or steps[1] is None else (steps[0], steps[1]),
            gate=scores.largest_gate(used),
            slowdown=time_ratio(scores, baseline, used, per_step=True) if len(inputs) == 1 else None,
            awaited=awaited,
            is_constant=bool(evidence.constant),
            failed_attempts=self.failed_attempts,
            pending=[
                variant.name
                for variant in self.variants
                if variant.role in CONTROL_ROLES
                and not all(self.scores[variant.name].ended(seed) for seed in used)
            ],
        )

    def _finalists(self, analysis: _Analysis) -> list[Comparison]:
        """Compare each finalist with the baseline."""
        # Holm's procedure changes p and the interval alike, so the interval excludes 0 if p is small enough.
        used, finalists = analysis.used, analysis.finalists
        factors = holm_factors([d.p for d in analysis.evidence.joint], family=len(self.finalists))
        comparisons = []
        for variant, time, factor in zip(finalists, self.times(finalists, used), factors, strict=True):
            alpha = (analysis.level or ALPHA) / factor
            d = self._difference(variant, self.baseline, used, alpha)
            limit = self._most_time(variant, used, analysis.level or ALPHA)
            comparisons.append(
                Comparison(
                    variant=variant.name,
                    role=variant.role,
                    difference=d,
                    opponents=[
                        self.meet(variant, other, used, alpha) for other in self._opponents(variant, limit)
                    ],
                    most_time=limit,
                    p_holm=min(1.0, factor * d.p),
                    images=self._images(d, variant, used, alpha),
                    time=time,
                )
            )
        return comparisons

    def _others(self, leader: Variant, used: Sequence[int]) -> Iterator[Comparison]:
        """Yield the other variants that have scores, compared with the baseline and the leading finalist."""
        for variant in self.variants[1:]:
            scores = self.scores[variant.name]
            both = [seed for seed in used if seed in scores.scores]
            # A candidate for the baseline may have scores at the first seeds only.
            partial_scores = variant.role in (Role.PLAIN, Role.LONGER) and len(both) < len(used)
            if variant.role is not Role.FINALIST and len(both) >= 2 and not partial_scores:
                d = self._difference(variant, self.baseline, both)
                yield Comparison(
                    variant=variant.name,
                    role=variant.role,
                    difference=d,
                    lead=self._difference(leader, variant, both),
                    images=self._images(d, variant, both, ALPHA),
                    time=time_ratio(scores, self.scores[self.baseline.name], both),
                )

    def _failures(self) -> Iterator[str]:
        for variant in self.variants:
            scores = self.scores[variant.name]
            failed = {**scores.failed, **scores.errors}
            for reason in dict.fromkeys(failed.values()):
                seeds = ", ".join(str(seed) for seed, other in failed.items() if other == reason)
                yield f"{variant.name} failed with seed {seeds}: {reason}"
            again = {seed: n for seed, n in scores.failed_attempts.items() if seed in scores.scores}
            if again and self.design.kind.own:
                seeds = ", ".join(f"{seed} ({pluralize(n, 'times')})" for seed, n in sorted(again.items()))
                yield (
                    f"{variant.name} failed and was tried again with seed {seeds}. If the other side failed "
                    f"less often, such a pair counts as the largest loss, as its run may be a lucky one."
                )

    def _unequal_trainings(self, seen: Sequence[int]) -> Iterator[str]:
        """Yield warnings of trainings whose times are not comparable."""
        devices = [scores.devices for scores in self.scores.values()]
        mixed = [seed for seed in seen if len({names[seed] for names in devices if seed in names}) > 1]
        if mixed:
            names = ", ".join(sorted({name for by_seed in devices for name in by_seed.values()}))
            yield (
                f"Restrict a search to nodes of one kind with --label: the variants of "
                f"{pluralize(len(mixed), 'seeds')} trained on different devices ({names}), so their "
                f"times are not comparable."
            )

    def _doubts(self, analysis: _Analysis, verdict: Verdict) -> Iterator[str]:
        """Yield warnings of suspicious scores, and of too few seeds."""
        used = analysis.used
        if self.design.kind.ignores and not analysis.evidence.constant:
            competing = [self.baseline, *analysis.finalists]
            if name := self.constant(competing, used):
                count = len(used)
                yield f"Check that {name} uses its seed: its {count} scores so far are equal in every digit."
            yield from self.equal_scores(analysis.finalists, used)
        if verdict.final == "undecided" and len(used) < self.least:
            yield (
                f"Run at least {self.least} seeds: {len(used)} seeds cannot show any difference with "
                f"{pluralize(len(self.finalists), 'finalists')}."
            )

    def equal_scores(self, variants: Sequence[Variant], used: Sequence[int]) -> Iterator[str]:
        """Yield a warning of each command whose scores are those of the baseline."""
        baseline = self.scores[self.baseline.name].scores
        for variant in variants:
            if all(self.scores[variant.name].scores[seed] == baseline[seed] for seed in used):
                yield (
                    f"Check that {variant.name} differs from {self.baseline.name}: their {len(used)} scores "
                    f"are equal in every digit, so both seem to run the same program."
                )

    def _difference(
        self, variant: Variant, other: Variant, seeds: Sequence[int], alpha: float = ALPHA
    ) -> Difference:
        design, metric = self.design, self.design.metric
        ours, theirs = self.scores[variant.name], self.scores[other.name]
        d = [metric.sign * metric.scale * (ours.scores[seed] - theirs.scores[seed]) for seed in seeds]
        scored = paired(d, margin=design.margin, resolution=design.resolution, alpha=alpha)
        failed = unequal_failures(ours, theirs, seeds)
        return count_failures(scored, d, failed, alpha) if design.kind.own and any(failed) else scored

    def _most_time(self, variant: Variant, seeds: Sequence[int], alpha: float) -> float | None:
        """Return how many times the baseline's time a finalist took at most, 1 if any time is fair."""
        if self.design.equal != "time":
            return 1.0
        return most_time(self.scores[variant.name], self.scores[self.baseline.name], seeds, alpha)

    def _opponents(self, finalist: Variant, limit: float | None) -> list[Variant | None]:
        """Return what a finalist has to beat beside the baseline, None for what cannot be trained.

        It is the plain variant with its hyperparameters. If the finalist may have taken more time, up to
        `limit` times the baseline's, it is instead the baseline and that variant, both trained for longer.
        """
        others: list[Variant | None] = [self.plain[finalist.plain]] if finalist.plain in self.plain else []
        if limit is not None and limit > NO_LONGER:
            # Opponents that have begun are kept while they cover the time, which varies from seed to seed.
            begun = (v.config.longer for v in self.variants if v.role is Role.LONGER)
            limit = min((factor for factor in begun if factor >= limit), default=limit)
            longer = [each and lengthen(each, limit) for each in (self.baseline, *others)]
            others = longer if None not in longer else [None]
        # One that cannot be trained shows that the gain does not come from its hyperparameters, or its time.
        return [each for each in others if each is None or not self.scores.get(each.name, Scores()).failed]

    def meet(
        self, finalist: Variant, other: Variant | None, seeds: Sequence[int], alpha: float = ALPHA
    ) -> Opponent:
        """Return a finalist's opponent, with the difference from it once it has trained with all seeds."""
        # It stays unknown if the finalist took longer even so, as beside a command that ignores its budget.
        if other is None:
            return Opponent(name=f"the {self.design.kind.baseline} in as much time", difference=None)
        is_baseline = other.config.change(longer=1.0, seed=0) == self.baseline.config.change(seed=0)
        name = f"the {self.design.kind.baseline}" if is_baseline else "the baseline with its hyperparameters"
        if other.role is Role.LONGER:
            name += f" trained {other.config.longer:g} times as long"
        difference, ours = None, self.scores[finalist.name]
        if self._is_whole(other.name, seeds):
            time = time_ratio(ours, self.scores[other.name], seeds) if self.design.kind.ignores else None
            both = [seed for seed in seeds if seed in self.scores[other.name].scores]
            if len(both) >= 2 and (time is None or time.low <= NO_LONGER):
                difference = self._difference(finalist, other, both, alpha)
        return Opponent(name=name, difference=difference, is_baseline=is_baseline)

    def times(self, variants: Sequence[Variant], seeds: Sequence[int]) -> list[Ratio | None]:
        """Return the time ratio of each variant at these seeds, or None if it is not known."""
        baseline = self.scores[self.baseline.name]
        return [time_ratio(self.scores[variant.name], baseline, seeds) for variant in variants]

    def _is_whole(self, name: str, seeds: Sequence[int]) -> bool:
        """Return whether all seeds of a variant have ended, or one of them cannot be trained."""
        scores, ended = self.scores.get(name, Scores()), self._ended
        return bool(scores.failed) or all(ended(scores, seed) for seed in seeds)

    def constant(self, variants: Sequence[Variant], seeds: Sequence[int]) -> str:
        """Return the name of the first command with equal scores at all seeds, or an empty string."""
        if not self.design.kind.ignores:
            return ""
        names = [variant.name for variant in variants]
        return next((n for n in names if len({self.scores[n].scores[seed] for seed in seeds}) == 1), "")

    def _is_guessing(self, variants: Sequence[Variant], seeds: Sequence[int]) -> bool:
        """Return whether no variant is shown to beat guessing, if its score is known."""
        chance, sign = self.design.chance, self.design.metric.sign
        return chance is not None and not any(
            statistics.above_chance(
                [sign * self.scores[variant.name].scores[seed] for seed in seeds],
                sign * chance.value,
                chance.error,
            )
            for variant in variants
        )

    def _images(
        self, d: Difference, variant: Variant, seeds: Sequence[int], alpha: float
    ) -> tuple[float, float] | None:
        """Return the interval over seeds and test inputs, or None without answers to each input."""
        if not d.bounds:
            return None
        trained = [self.scores[name] for name in (variant.name, self.baseline.name)]
        values = [[scores.values.get(seed) for seed in seeds] for scores in trained]
        sizes = {None if answers is None else len(answers) for rows in values for answers in rows}
        inputs, chance = self.design.inputs, self.design.chance
        if len(sizes) != 1 or None in sizes or (inputs and sizes != {inputs}):
            return None
        first, second = (np.array(rows, float) for rows in values)
        step = (chance.step or None) if chance is not None else None
        reach = self.design.metric.scale * statistics.reach_over_inputs(first - second, alpha, step=step)
        return min(d.low, d.mean - reach), max(d.high, d.mean + reach)
