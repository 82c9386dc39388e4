"""A change of a ledger: which seeds it needs, and its verdict from the scores so far.

The first seeds screen the change against runs of the baseline that were kept. Then fresh pairs test it, and
spend a part of the level. See `automl.confirm.evalues`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from automl.confirm.ledger import ACCEPTED, STALE, Decision, Head, Ledger
from automl.confirm.protocol import Confirmation
from automl.confirm.scores import Scores
from automl.confirm.statistics import Difference, Ratio
from automl.confirm.variants import Variant
from automl.confirm.verdict import Comparison, Verdict
from automl.storage.metadata import SearchMetadata
from search.config import TrialConfig
from search.fixed_scheduler import FixedScheduler, PlannedTrial
from search.record import Report, State, TrialRecord

HOPELESS, UNSHOWN, TIME, CONSTANT_SCORE = "no gain in sight", "not shown", "unequal time", "seed ignored"
METRIC = "metric"  # the fact of a ledger that all comparisons share
# The outcome of a verdict and its words, by that of the decision.
WORDS: Mapping[str, tuple[Outcome, str]] = {
    ACCEPTED: ("better", "{name} beats the baseline by {size} and is the new head"),
    HOPELESS: ("undecided", "No gain of {name} in sight after {count} pairs"),
    UNSHOWN: ("undecided", "No gain of {name} shown in {count} pairs"),
    TIME: ("cannot tell", "the gain may come from longer training"),
    STALE: ("cannot tell", "another change became the head meanwhile; compare with that"),
    CONSTANT_SCORE: ("cannot tell", "{constant} gives the same score with every seed"),
}


@dataclass(frozen=True, kw_only=True)
class _State:
    """Scores of the seeds so far: differences of the screen and the test, and what the rules see in them."""

    seeds: Sequence[int]
    screen: np.ndarray
    test: np.ndarray
    time: Ratio | None
    constant: str


class Stream:
    """The ledger as one of its comparisons sees it."""

    def __init__(self, ledger: Ledger, name: str, screen: int, equal: str) -> None:
        self.ledger, self.name, self.screen, self.equal = ledger, name, screen, equal
        self.head = ledger.heads()[ledger.head_of(name) - 1]
        self._kept = set(ledger.pool(self.head.number))

    @classmethod
    def open(cls, metadata: SearchMetadata, confirmation: Confirmation) -> "Stream | None":
        """Return the ledger of a comparison, or None if it is of no ledger."""
        if not confirmation.options.screen:
            return None
        ledger, screen = Ledger(Path(metadata.settings.storage)), confirmation.options.screen
        check_metric(ledger, confirmation.variant_set.variants[0].config, metadata.settings.equal)
        return cls(ledger, metadata.name, screen, metadata.settings.equal)

    def reuse(self, planned: FixedScheduler, baseline: Variant, seeds: Sequence[int]) -> None:
        """Add runs of the baseline that earlier comparisons have kept, as finished trials."""
        known = {(record.variant, record.config.seed) for record in planned.standing}
        for seed, (_, history) in self.ledger.pool(self.head.number).items():
            if seed in seeds[: self.screen] and (baseline.name, seed) not in known:
                config = replace(baseline.config, seed=seed)
                record = planned._add(baseline.role, config, variant=baseline.name)
                planned.end(record.number, Report(history=history, finished=True))

    def keep(self, records: Iterable[TrialRecord], baseline: Variant) -> None:
        """Keep new runs of the baseline for later screens. Raise InputError if the metric is another one."""
        for record in records:
            seed = record.config.seed
            new = record.variant == baseline.name and record.state is State.COMPLETE
            if new and seed in self.head.seeds and seed not in self._kept:
                check_metric(self.ledger, record.config, self.equal, begin=True)
                self.ledger.add_to_pool(self.head.number, seed, self.name, record.history)
                self._kept.add(seed)

    def needed(self, trials: Sequence[PlannedTrial], seeds: Sequence[int]) -> list[PlannedTrial]:
        """Return those of the trials that are needed now."""
        decision = self.ledger.decision(self.name)
        count = self.screen if self.name not in self.ledger.tested() else len(seeds)
        if decision is not None:
            count = decision.screened + decision.pairs
        return [trial for trial in trials if trial.config.seed in seeds[:count]]

    def judge(self, design: Design, variants: Sequence[Variant], scores: Mapping[str, Scores]) -> Verdict:
        """Return the verdict on the candidate, the second variant. Record it in the ledger once it is final.

        A test stops at what the latest pairs show, and never at what earlier ones showed, since the level may
        have become larger meanwhile.
        """
        judge = Judge(design, variants, scores)
        baseline, candidate = (scores[variant.name].scores for variant in variants[:2])
        ended = list(takewhile(lambda seed: seed in baseline and seed in candidate, design.seeds))
        decision = self.ledger.decision(self.name)
        if decision is not None:
            ended = ended[: decision.screened + decision.pairs]
        factor = design.metric.sign * design.metric.scale
        d = np.array([factor * (candidate[seed] - baseline[seed]) for seed in ended])
        futile = np.flatnonzero(evalues.is_futile(d))
        if len(futile):
            ended, d = ended[: futile[0] + 1], d[: futile[0] + 1]
        warnings = judge.warnings(ended)
        if len(ended) < 2:
            return Verdict(design=design, warnings=warnings)
        used = ended[self.screen :] or ended
        state = _State(
            seeds=ended,
            screen=d[: self.screen],
            test=d[self.screen :],
            time=judge.times(variants[1:2], used)[0],
            constant=judge.constant(variants[:2], ended) if len(ended) >= CONSTANT else "",
        )
        if decision is None:
            decision = self._evidence(state, design, scores)
            if (outcome := self._outcome(state, design, decision, futile)) is not None:
                decision = self.ledger.decide(self.name, replace(decision, outcome=outcome))
        decision = replace(decision, head=_named(self.ledger.heads()[-1]))
        return self._verdict(design, variants[1], state, decision, used, warnings)

    def _evidence(self, state: _State, design: Design, scores: Mapping[str, Scores]) -> Decision:
        """Return the evidence so far, without an outcome."""
        index = self.ledger.tested().get(self.name)
        passed = len(state.screen) == self.screen and not evalues.is_futile(state.screen).any()
        if passed and index is None and not state.constant and not self._is_stale():
            index = self.ledger.begin_test(self.name)
        level = e_value = interval = None
        d = state.screen
        if len(state.test) and index is not None:
            d = state.test
            level = float(evalues.level(index, self.ledger.discoveries()))
            log_e = float(evalues.log_e_values(state.test, state.screen)[-1])
            e_value = math.exp(min(log_e, 700.0))
            interval = evalues.interval(state.test, state.screen)
        pool = self.ledger.pool(self.head.number)
        reused = sum(origin != self.name and seed in design.seeds for seed, (origin, _) in pool.items())
        return Decision(
            outcome="",
            pairs=len(state.test),
            screened=len(state.screen),
            index=index,
            level=level,
            e_value=e_value,
            difference=float(d.mean()),
            interval=interval if interval is None or math.isfinite(interval[0]) else None,
            left=evalues.share_left(len(self.ledger.tested())),
            trainings=sum(len(scored.scores) for scored in scores.values()) - reused,
            reused=reused,
            scores={
                name: {str(seed): scored.scores[seed] for seed in state.seeds if seed in scored.scores}
                for name, scored in scores.items()
            },
        )

    def _outcome(self, state: _State, design: Design, now: Decision, futile: np.ndarray) -> str | None:
        """Return the outcome that the latest pairs show, or None if more are needed."""
        if state.constant:
            return CONSTANT_SCORE
        if self._is_stale():
            return STALE
        if len(futile):
            return HOPELESS
        is_last = len(state.seeds) == len(design.seeds)
        if now.level is None or now.e_value is None or now.e_value < 1 / now.level:
            return UNSHOWN if is_last else None
        if design.equal != "time" or (state.time is not None and state.time.no_longer):
            return ACCEPTED
        is_longer = len(state.test) > 2 and (state.time is None or state.time.low > 1)
        return TIME if is_last or is_longer else None

    def _is_stale(self) -> bool:
        return self.ledger.heads()[-1].number != self.head.number

    def _verdict(
        self,
        design: Design,
        candidate: Variant,
        state: _State,
        now: Decision,
        used: Sequence[int],
        warnings: Sequence[str],
    ) -> Verdict:
        d = state.test if len(state.test) else state.screen
        outcome, words = WORDS.get(now.outcome, ("undecided", ""))
        p = 1.0 if now.e_value is None else min(1.0, 1 / now.e_value)
        difference = Difference(
            mean=float(d.mean()),
            sd=float(d.std(ddof=1)) if len(d) > 1 else None,
            p=p,
            p_margin=1.0,
            count=len(d),
            find_interval=lambda: now.interval or (-math.inf, math.inf),
        )
        lead = Comparison(variant=candidate, difference=difference, p_holm=p, time=state.time)
        size = f"{abs(difference.mean):.{design.decimals}f} {design.unit}"
        return Verdict(
            design=design,
            outcome=outcome,
            words=words.format(
                name=candidate.title, size=size, count=len(state.seeds), constant=state.constant
            ),
            complete=bool(now.outcome),
            lead=lead,
            comparisons=[lead],
            used=used,
            is_constant=bool(state.constant),
            warnings=warnings,
            decision=now,
        )


def check_metric(ledger: Ledger, config: TrialConfig, equal: str, *, begin: bool = False) -> None:
    """Raise InputError if the ledger has another metric. With `begin`, it gets this one if it has none."""
    reports = config.training.reports  # type: ignore[attr-defined]
    own: dict[str, Any] = {name: getattr(config.training, name) for name in ("metric", "metric_file", "last")}
    if (guard := getattr(config.training, "guard", None)) is not None:
        own["evaluate"] = guard.evaluate.replace(str(config.data.path), ".")
        own |= {"evaluator": Path(guard.evaluator).name, "protect": dict(guard.protect)}
    own |= {"minimize": not reports.maximize, "unit": reports.unit, "equal": equal}
    fact = ledger.set_once(METRIC, own) if begin else ledger.fact(METRIC)
    if fact is not None and fact != own:
        key = next(key for key, value in own.items() if fact.get(key) != value)
        raise InputError(
            f"the ledger in {ledger.folder} has {format_option(key, fact.get(key))} and not "
            f"{format_option(key, own[key])}, and a ledger keeps its metric. Use that, or "
            f"begin another ledger"
        )


def _named(head: Head) -> str:
    return f"{head.program}, " + (
        f"accepted in {head.comparison}" if head.comparison else "its first baseline"
    )
