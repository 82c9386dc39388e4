"""A change of a ledger: which seeds it needs, and its verdict from the scores so far.

The first seeds screen the change against runs of the baseline that were kept. Then fresh pairs test it, and
spend a part of the level. See `automl.confirm.evalues`.
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
from automl.confirm import evalues
from automl.confirm.decision import Outcome
from automl.confirm.design import Design
from automl.confirm.judge import CONSTANT, Judge
from automl.confirm.ledger import ACCEPTED, COMPARISON, POOL, STALE, TEST, VERDICT, Decision, Ledger
from automl.confirm.protocol import Confirmation
from automl.confirm.scores import Scores, unequal_failures
from automl.confirm.statistics import NO_LONGER, Difference, Ratio
from automl.confirm.variants import Variant
from automl.confirm.verdict import Comparison, Verdict
from automl.storage.metadata import SearchMetadata
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import Report, State, TrialRecord

METRIC = "metric"  # the fact of a ledger that all comparisons share
LARGEST = 700.0  # logarithm of the largest e-value that is written
HOPELESS, UNSHOWN, TIME, SEED = "no gain in sight", "not shown", "unequal time", "seed ignored"
# The outcome of a verdict and its words, by that of the decision.
WORDS: Mapping[str, tuple[Outcome, str]] = {
    "": ("undecided", ""),
    ACCEPTED: ("better", "{name} beats the baseline by {size} and is the new head"),
    HOPELESS: ("undecided", "No gain of {name} in sight after {count} pairs"),
    UNSHOWN: ("undecided", "No gain of {name} shown in {count} pairs"),
    TIME: ("cannot tell", "the gain may come from longer training"),
    STALE: ("cannot tell", "another change became the head meanwhile; compare with that"),
    SEED: ("cannot tell", "{constant} gives the same score with every seed"),
}


class Stream:
    """The ledger as one of its comparisons sees it.

    It records one that is new. Raises InputError if the ledger does not have one that has runs.
    """

    def __init__(self, metadata: SearchMetadata, confirmation: Confirmation, *, is_new: bool) -> None:
        self.ledger, self.name = Ledger(Path(metadata.settings.storage)), metadata.name
        self.screen, self.equal = confirmation.options.screen, metadata.settings.equal
        self.baseline = confirmation.variant_set.variants[0]
        check_metric(self.ledger, self.baseline.config, self.equal)
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
                check_metric(self.ledger, record.config, self.equal, begin=True)
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
        decision, factor = self.ledger.decision(self.name), design.metric.sign * design.metric.scale
        if decision is not None:
            ended = ended[: decision.screened + decision.pairs]
        failed = unequal_failures(trained[0], trained[1], ended)
        measured = np.array([factor * (candidate[seed] - baseline[seed]) for seed in ended])
        # Of a pair with failed runs, one may be a lucky one. Such a pair counts as the largest loss so far.
        largest = np.maximum.accumulate(np.abs(measured))
        d = np.where(failed, -largest, measured)
        futile = np.flatnonzero(evalues.is_futile(d))
        if len(futile):
            end = futile[0] + 1
            ended, d, measured = ended[:end], d[:end], measured[:end]
        warnings = [*judge.warnings(ended), *evalues.find_doubts(measured)]
        if len(ended) < 2:
            return Verdict(design=design, warnings=warnings, failed_attempts=judge.failed_attempts)
        warnings += judge.equal_scores(variants[1:2], ended)
        used = ended[self.screen :] or ended
        (time,) = judge.times(variants[1:2], used)
        constant = judge.constant(variants[:2], ended) if len(ended) >= CONSTANT else ""
        if decision is None:
            decision = self._evidence(d, measured, blocked=bool(constant or len(futile)))
            outcome = SEED if constant else HOPELESS if len(futile) else self._outcome(decision, design, time)
            if outcome:
                runs = sum(len(scored.scores) for scored in scores.values()) - decision.reused
                kept = {n: {str(s): scored.scores[s] for s in ended} for n, scored in scores.items()}
                decision = replace(decision, outcome=outcome, trainings=runs, scores=kept)
                decision = self.ledger.decide(self.name, decision)
                self.seen = self.ledger.check(self.seen)
        head = self.ledger.heads()[-1]
        accepted = f"accepted in {head.comparison}" if head.comparison else "its first baseline"
        decision = replace(decision, head=f"{head.program}, {accepted}")
        lead = _compare(variants[1], measured[-len(used) :], decision, time)
        outcome, words = WORDS[decision.outcome]
        size = f"{abs(lead.difference.mean):.{design.decimals}f} {design.unit}"
        return Verdict(
            design=design,
            outcome=outcome,
            words=words.format(name=variants[1].title, size=size, count=len(ended), constant=constant),
            complete=bool(decision.outcome),
            lead=lead,
            comparisons=[lead],
            used=used,
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

    def _outcome(self, now: Decision, design: Design, time: Ratio | None) -> str:
        """Return the outcome that the latest pairs show, or nothing if more are needed."""
        if self._is_stale():
            return STALE
        is_last = now.screened + now.pairs == len(design.seeds)
        if now.level is None or now.e_value is None or now.e_value < 1 / now.level:
            return UNSHOWN if is_last else ""
        if design.equal != "time" or (time is not None and time.high <= NO_LONGER):
            return ACCEPTED
        return TIME if is_last or time is None or time.low > 1 else ""

    def _is_stale(self) -> bool:
        return self.ledger.heads()[-1].number != self.head


def _compare(variant: Variant, d: np.ndarray, decision: Decision, time: Ratio | None) -> Comparison:
    p = 1.0 if decision.e_value is None else min(1.0, 1 / decision.e_value)
    low, high = decision.interval or (-math.inf, math.inf)
    difference = Difference(
        mean=float(d.mean()),
        sd=float(d.std(ddof=1)) if len(d) > 1 else None,
        p=p,
        p_margin=1.0,
        count=len(d),
        find_interval=lambda: (low, high),
    )
    return Comparison(variant=variant, difference=difference, p_holm=p, time=time)


def check_metric(ledger: Ledger, config: TrialConfig, equal: str, *, begin: bool = False) -> None:
    """Raise InputError if the ledger has another metric. With `begin`, it gets this one if it has none."""
    training: Any = config.training
    own = {name: getattr(training, name) for name in ("metric", "metric_file", "last")}
    own |= {"minimize": not training.reports.maximize, "unit": training.reports.unit, "equal": equal}
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
