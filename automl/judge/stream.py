"""A change of a ledger: which seeds it needs, and its verdict from the scores so far.

The first seeds screen the change against runs of the baseline that were kept. Then fresh pairs test it, and
spend a part of the level. See `automl.judge.evalues`. A change that may have taken more time must also beat
the head trained for longer with the same seeds.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.base.options import format_option
from automl.judge import evalues
from automl.judge.decision import Outcome
from automl.judge.design import Design
from automl.judge.judge import CONSTANT, Judge
from automl.judge.ledger import ACCEPTED, COMPARISON, POOL, STALE, TEST, VERDICT, Decision, Ledger
from automl.judge.protocol import Confirmation
from automl.judge.rules import Evidence, Opponent
from automl.judge.scores import Scores, time_ratio, unequal_failures
from automl.judge.statistics import ALPHA, NO_LONGER, Difference, Interval, Ratio
from automl.judge.variants import Variant, lengthen
from automl.judge.verdict import Comparison, Verdict, word_fields
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import Report, Role, State, TrialRecord

METRIC = "metric"  # the fact of a ledger that all comparisons share
LARGEST = 700.0  # logarithm of the largest e-value that is written
HOPELESS, UNSHOWN, TIME, SEED = "no gain in sight", "not shown", "unequal time", "seed ignored"
# The outcome of a verdict and its words, by that of the decision.
WORDS: Mapping[str, tuple[Outcome, str]] = {
    "": ("undecided", ""),
    ACCEPTED: ("better", "Better by {difference}, {seeds}: {winner} is the new head"),
    HOPELESS: ("undecided", "Undecided: no gain of {winner} in sight after {count} pairs"),
    UNSHOWN: ("undecided", "Undecided: no gain of {winner} shown in {count} pairs"),
    TIME: ("undecided", "Undecided: better than the {baseline} by {difference}, but {equal}"),
    STALE: ("cannot tell", "another change became the head meanwhile; compare with that"),
    SEED: ("cannot tell", "{constant} gives the same score with every seed"),
}


class Stream:
    """The ledger as one of its comparisons sees it.

    It records one that is new. Raises InputError if the ledger does not have one that has runs.
    """

    def __init__(
        self, ledger: Ledger, name: str, confirmation: Confirmation, equal: str, *, is_new: bool
    ) -> None:
        self.ledger, self.name = ledger, name
        self.screen, self.any_time = confirmation.options.screen, equal == "none"
        self.baseline = confirmation.variant_set.variants[0]
        check_metric(self.ledger, self.baseline.config, self.any_time)
        if is_new and confirmation.change is not None:
            begun = {**confirmation.change, "seeds": confirmation.seeds}
            row = self.ledger.set_once(self.name, {**begun, "began": time.time()}, COMPARISON)
            if not begun.items() <= row.items():
                raise InputError(
                    f"{self.ledger.file} has a comparison {self.name!r}, whose folder was removed; choose "
                    "another --name"
                )
        if (row := self.ledger.rows(COMPARISON).get(self.name)) is None:
            raise InputError(
                f"{self.ledger.file} has no comparison {self.name!r}; give the folder of its ledger"
            )
        self.head: int = row["head"]
        self.pool, self.seeds = POOL.format(self.head), confirmation.seeds[: self.screen]
        self.seen = self.ledger.check({})

    def reuse(self, planned: FixedScheduler) -> None:
        """Add runs of the baseline that earlier comparisons have kept, as finished trials."""
        known = {record.config.seed for record in planned.standing if record.variant == self.baseline.name}
        pool = self.ledger.rows(self.pool)
        for seed in self.seeds:
            if (run := pool.get(str(seed))) is not None and seed not in known:
                config = replace(self.baseline.config, seed=seed)
                record = planned._add(self.baseline.role, config, variant=self.baseline.name)
                planned.end(record.number, Report(history=run["history"], finished=True))

    def keep(self, records: Iterable[TrialRecord]) -> None:
        """Keep new runs of the baseline for later screens. Raise InputError if the metric is another one."""
        pool = self.ledger.rows(self.pool)
        for record in records:
            seed = record.config.seed
            new = record.variant == self.baseline.name and record.state is State.COMPLETE
            if new and seed in self.seeds and str(seed) not in pool:
                check_metric(self.ledger, record.config, self.any_time, begin=True)
                run = {"comparison": self.name, "history": [dict(metrics) for metrics in record.history]}
                self.ledger.set_once(str(seed), run, self.pool)

    def needed(self, trials: Sequence[PlannedTrial], seeds: Sequence[int]) -> list[PlannedTrial]:
        """Return those of the trials that are needed now."""
        count = len(seeds) if self.name in self.ledger.rows(TEST) else self.screen
        if (decision := self.ledger.decision(self.name)) is not None:
            count = decision.screened + decision.pairs
        return [trial for trial in trials if trial.config.seed in seeds[:count]]

    def judge(self, design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
        """Return the verdict on the candidate, the second variant. Record it in the ledger once it is final.

        A test stops at what the latest pairs show, and never at what earlier ones showed, since the level may
        have become larger meanwhile.
        """
        before, own = self.seen, f"{VERDICT} {self.name}"
        self.seen = self.ledger.check(before)
        if own in self.seen and own not in before:
            raise InputError(
                f"{self.ledger.file} has a verdict on {self.name} that a command must have written"
            )
        judge = Judge(design, variants, scores)
        trained = [scores[variant.name] for variant in variants[:2]]
        baseline, candidate = trained[0].scores, trained[1].scores
        ended = list(takewhile(lambda seed: seed in baseline and seed in candidate, design.seeds))
        decision = self.ledger.decision(self.name)
        if decision is not None:
            ended = ended[: decision.screened + decision.pairs]
        d, measured = _differences(design, trained[1], trained[0], ended)
        futile = np.flatnonzero(evalues.is_futile(d))
        if len(futile):
            end = futile[0] + 1
            ended, d, measured = ended[:end], d[:end], measured[:end]
        warnings = [*judge.warnings(ended), *evalues.find_doubts(measured)]
        if len(ended) < 2:
            return Verdict(
                design=design,
                variants=judge.trained,
                warnings=warnings,
                failed_attempts=judge.failed_attempts,
            )
        warnings += judge.equal_scores(variants[1:2], ended)
        used = ended[self.screen :] or ended
        (time,) = judge.times(variants[1:2], used)
        constant = judge.constant(variants[:2], ended) if len(ended) >= CONSTANT else ""
        awaited, opponents = list[Variant](), list[Opponent]()
        if decision is None:
            decision = self._evidence(d, measured, blocked=bool(constant or len(futile)))
        outcome = UNSHOWN if len(ended) == len(design.seeds) else ""
        if decision.level is not None and (decision.e_value or 0.0) >= 1 / decision.level:
            outcome, time, opponents, awaited = self._check_time(judge, decision, used)
        if not decision.outcome:
            stop = HOPELESS if len(futile) else STALE if self._is_stale() else outcome
            if outcome := SEED if constant else stop:
                runs = sum(len(scored.scores) for scored in scores.values()) - decision.reused
                kept = {
                    name: {str(seed): scored.scores[seed] for seed in ended if seed in scored.scores}
                    for name, scored in scores.items()
                }
                decision = replace(decision, outcome=outcome, trainings=runs, scores=kept)
                decision = self.ledger.decide(self.name, decision)
                self.seen = self.ledger.check(self.seen)
        head = self.ledger.heads()[-1]
        accepted = f"accepted in {head.comparison}" if head.comparison else "its first baseline"
        decision = replace(decision, head=f"{head.program}, {accepted}")
        shown = _difference(measured[-len(used) :], decision.e_value, decision.interval)
        lead = Comparison(
            variant=variants[1].name,
            role=variants[1].role,
            difference=shown,
            p_holm=shown.p,
            opponents=opponents,
            most_time=None if time is None else time.high,
            time=time,
        )
        level = decision.level or ALPHA
        evidence = Evidence(
            differences=[shown], opponents=[opponents], level=lambda _: level, constant=constant
        )
        words = word_fields(design, variants[1].title, lead, evidence) | {"count": len(ended)}
        return Verdict(
            design=design,
            outcome=WORDS[decision.outcome][0],
            words=WORDS[decision.outcome][1].format(**words),
            complete=bool(decision.outcome),
            finalist=lead.variant,
            comparisons=[lead],
            variants=judge.trained,
            used=used,
            awaited=[] if decision.outcome else awaited,
            is_constant=bool(constant),
            warnings=warnings,
            failed_attempts=judge.failed_attempts,
            decision=decision,
        )

    def _evidence(self, d: np.ndarray, measured: np.ndarray, *, blocked: bool) -> Decision:
        """Return the evidence so far, without an outcome. After the screen, begin the test."""
        # `measured` are the differences of the scores, and `d` those that count.
        screen, test = d[: self.screen], d[self.screen :]
        index = self.ledger.rows(TEST).get(self.name)
        if index is None and len(screen) == self.screen and not blocked and not self._is_stale():
            index = self.ledger.begin_test(self.name)
        origins = {seed: run["comparison"] for seed, run in self.ledger.rows(self.pool).items()}
        decision = Decision(
            pairs=len(test),
            screened=len(screen),
            index=index,
            difference=float(measured[self.screen if len(test) else 0 :].mean()),
            left=evalues.share_left(len(self.ledger.rows(TEST))),
            reused=sum(origins.get(str(seed), self.name) != self.name for seed in self.seeds),
        )
        if index is None or not len(test):
            return decision
        both = [evalues.interval(row[self.screen :], screen) for row in (d, measured)]
        interval = both[0][0], both[1][1]
        outcomes = [verdict["outcome"] for verdict in self.ledger.rows(VERDICT).values()]
        return replace(
            decision,
            level=float(evalues.level(index, outcomes.count(ACCEPTED))),
            e_value=math.exp(min(float(evalues.log_e_values(test, screen)[-1]), LARGEST)),
            interval=interval if math.isfinite(interval[0]) else None,
        )

    def _check_time(
        self, judge: Judge, now: Decision, seeds: Sequence[int]
    ) -> tuple[str, Ratio | None, list[Opponent], list[Variant]]:
        """Return the outcome of a change that is ahead, its time ratio, its opponents, and what to train.

        The outcome is empty if more runs are needed.
        """
        design, scores, candidate = judge.design, judge.scores, judge.variants[1]
        ours, head = scores[candidate.name], scores[self.baseline.name]
        time = time_ratio(ours, head, seeds, find=_lasting_ratio)
        if design.equal != "time" or (time is not None and time.high <= NO_LONGER):
            return ACCEPTED, time, [], []
        is_last = now.screened + now.pairs == len(design.seeds)
        low, high = (math.inf, math.inf) if time is None else (time.low, time.high)
        begun = (v for v in judge.variants if v.role is Role.LONGER and v.config.longer >= high)
        if (longer := next(begun, None) or lengthen(self.baseline, high)) is None:
            outcome = TIME if is_last or low > NO_LONGER else ""
            return outcome, time, [judge.meet(candidate, None, seeds)], []
        theirs = scores.get(longer.name, Scores())
        both = list(takewhile(theirs.scores.__contains__, seeds))
        if len(both) < 2:
            return "", time, [], [longer]
        d, measured = _differences(design, ours, theirs, both)
        is_lost = evalues.is_futile(d).any() or (is_last and len(both) == len(seeds))
        e_value = math.exp(min(float(evalues.log_e_values(d, np.empty(0))[-1]), LARGEST))
        opponent = judge.meet(candidate, longer, both)
        if opponent.difference is not None:
            difference = _difference(measured, e_value, evalues.interval(d, np.empty(0)))
            opponent = replace(opponent, difference=difference)
            if now.level is not None and e_value >= 1 / now.level:
                return ACCEPTED, time, [opponent], []
        return TIME if is_lost else "", time, [opponent], [longer]

    def _is_stale(self) -> bool:
        return self.ledger.heads()[-1].number != self.head


def _differences(
    design: Design, ours: Scores, theirs: Scores, seeds: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences that count, and those that were measured, above 0 if `ours` is better."""
    factor = design.metric.sign * design.metric.scale
    measured = np.array([factor * (ours.scores[seed] - theirs.scores[seed]) for seed in seeds])
    # Of a pair with failed runs, one may be a lucky one. Such a pair counts as the largest loss so far.
    largest = np.maximum.accumulate(np.abs(measured))
    return np.where(unequal_failures(ours, theirs, seeds), -largest, measured), measured


def _difference(d: np.ndarray, e_value: float | None, interval: Sequence[float] | None) -> Difference:
    low, high = interval or (-math.inf, math.inf)
    return Difference(
        mean=float(d.mean()),
        sd=float(d.std(ddof=1)) if len(d) > 1 else None,
        p=1.0 if e_value is None else min(1.0, 1 / e_value),
        p_margin=1.0,
        count=len(d),
        ahead=int((d > 0).sum()),
        behind=int((d < 0).sum()),
        interval=Interval(lambda: (low, high)),
    )


def _lasting_ratio(ours: Sequence[float], theirs: Sequence[float], alpha: float) -> Ratio:
    """Return the ratio of positive numbers, with an interval that holds whenever the test stops."""
    logs = np.log(ours) - np.log(theirs)
    mean, (low, high) = float(logs.mean()), evalues.interval(logs, np.empty(0), alpha)
    return Ratio(mean=math.exp(mean), low=math.exp(low), high=math.exp(high))


def check_metric(ledger: Ledger, config: TrialConfig, any_time: bool, *, begin: bool = False) -> None:
    """Raise InputError if the ledger has another metric. With `begin`, it gets this one if it has none."""
    training: Any = config.training
    own = {name: getattr(training, name) for name in ("metric", "metric_file", "last")}
    own |= {"minimize": not training.reports.maximize, "unit": training.reports.unit}
    own["any_time"] = any_time
    own["evaluate"] = training.guard.evaluate.replace(str(config.data.path), ".")
    own |= {"evaluator": Path(training.guard.evaluator).name, "protect": dict(training.guard.protect)}
    fact = ledger.set_once(METRIC, own) if begin else ledger.rows().get(METRIC, own)
    kept = fact.get("protect", {})
    if changed := [path for path, digest in own["protect"].items() if kept.get(path, digest) != digest]:
        raise InputError(
            f"{', '.join(changed)} has changed since the ledger in {ledger.folder} began. Restore it, or "
            f"begin another ledger"
        )
    if fact != own:
        key = next(key for key, value in own.items() if fact.get(key) != value)
        raise InputError(
            f"the ledger in {ledger.folder} has {format_option(key, fact.get(key))} and not "
            f"{format_option(key, own[key])}, and keeps its metric. Use that, or begin another ledger"
        )
