"""Simulate verdicts on a finalist that trains longer than the baseline, by today's rules and by earlier ones.

Earlier rules called a finalist better if it beat the baseline by sign flips and P. Hall's t, in a time ratio
whose interval ended at 1.05 or below. Where it ended above, they could not tell. Today's rules train the
baseline longer instead, as long as the finalist took at most by its trainings or by steps timed in turn.

Differences are in standard deviations of a paired difference. A case has the time ratio of the finalist, the
noise of a training's time, the gain from training 10 % longer, and the finalist's effect at equal time. The
results are three tables: a lead of 5 sd in 8 seeds, confirmations that stop early with up to 10 seeds, and
the rates at which the tests alone reject. Takes about three minutes on one core.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import product

import numpy as np
from harness import write_values

from automl.judge.decision import nominal_levels
from automl.judge.rules import Evidence, Opponent, decide
from automl.judge.scores import TIMING_ERROR
from automl.judge.statistics import (
    ALPHA,
    NO_LONGER,
    Difference,
    Ratio,
    least_pairs,
    paired,
    paired_ratio,
    sign_flip,
    skewed_t,
)
from automl.judge.variants import LONGER

CONFIRMATIONS = 1000  # for each cell
PRECISE = 5  # times as many for rates of false claims
RATIOS = (1.0, 1.03, 1.1)
TIME_NOISE = (0.003, 0.03, 0.1)
JUMP = "jump"  # of 3 sd once a training is 1.04 times as long
MUCH = 2.0  # outside the grid, for the rate of false claims
BUYS: tuple[float | str, ...] = (0.0, 0.2, 1.0, JUMP, MUCH)  # gain from 10 % more time
EFFECTS = (0.0, 1.0, 2.0, 20.0)
EARLIER_BOUND = 1.05
TIMING_REACH, TIMING_BIAS = 0.012, 0.01  # of timed steps: half the interval, and the sd between equal models


@dataclass(frozen=True, kw_only=True)
class Case:
    """Truth of a confirmation. `effect` is that at equal time."""

    ratio: float
    time_noise: float
    buys: float | str
    effect: float

    def gain(self, longer: float) -> float:
        """Return the gain from training `longer` times as long."""
        if isinstance(self.buys, str):
            return 3.0 * (longer >= 1.04)
        return self.buys * (longer - 1) / 0.1

    @property
    def lead(self) -> float:
        return self.effect + self.gain(self.ratio)


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """Noise of a confirmation: of its scores at each seed, its times, and its steps that were timed."""

    baseline: np.ndarray
    longer: np.ndarray
    finalist: np.ndarray
    times: np.ndarray
    steps: float

    def time(self, case: Case, seeds: int, alpha: float = ALPHA) -> Ratio:
        """Return the ratio of the times of the trainings so far."""
        times = case.ratio * np.exp(case.time_noise * self.times[:seeds])
        return paired_ratio(times.tolist(), [1.0] * seeds, alpha)

    def most_time(self, case: Case, seeds: int, alpha: float) -> float:
        """Return the time ratio at most, as `automl.judge.scores.most_time` does."""
        timed = case.ratio * math.exp(self.steps + TIMING_REACH) * (1 + TIMING_ERROR)
        return min(timed, self.time(case, seeds, alpha).high)


@cache
def draw_noise(confirmation: int, seeds: int) -> Noise:
    random = np.random.default_rng(confirmation)
    baseline, longer, finalist = random.normal(0, math.sqrt(0.5), (3, seeds))
    return Noise(
        baseline=baseline,
        longer=longer,
        finalist=finalist,
        times=random.normal(0, math.sqrt(2), seeds),
        steps=random.normal(0, math.hypot(TIMING_BIAS, TIMING_REACH / 1.96)),
    )


@lru_cache(maxsize=60_000)
def compare_with_baseline(noise: Noise, lead: float, seeds: int) -> tuple[Difference, float]:
    """Return the difference of the finalist, and p of the earlier test. Many cells have the same."""
    d = lead + (noise.finalist - noise.baseline)[:seeds]
    return paired(d.tolist(), margin=0.0), earlier_p(d)


def levels(analyses: tuple[int, ...]) -> Iterator[tuple[int, Callable[[float], float]]]:
    """Yield the number of seeds of each analysis, and its level."""
    for i, seeds in enumerate(analyses):
        yield seeds, partial(level_at, analyses, i)


def level_at(analyses: tuple[int, ...], analysis: int, alpha: float) -> float:
    return nominal_levels(analyses, alpha)[analysis]


def confirm_earlier(case: Case, noise: Noise, analyses: tuple[int, ...]) -> tuple[str, int]:
    """Return the outcome by the earlier rules, and the number of trainings."""
    outcome, seeds = "undecided", analyses[-1]
    for seeds, level in levels(analyses):
        outcome = "undecided"
        d, p = compare_with_baseline(noise, case.lead, seeds)
        if p <= level(ALPHA):
            time = noise.time(case, seeds)
            if d.mean > 0:
                outcome = "better" if time.high <= EARLIER_BOUND else "cannot tell"
            else:
                outcome = "worse" if time.low >= 2 - EARLIER_BOUND else "cannot tell"
        if outcome in ("better", "worse"):
            break
    return outcome, 2 * seeds


def earlier_p(d: np.ndarray) -> float:
    sd = float(d.std(ddof=1))
    return max(sign_flip(d), skewed_t(d, sd)) if sd > 0 else sign_flip(d)


def confirm(case: Case, noise: Noise, analyses: tuple[int, ...]) -> tuple[str, int]:
    """Return the outcome by today's rules, and the number of trainings."""
    longer: dict[float, int] = {}  # trainings of the baseline, by how many times as long they are
    seeds, outcome = analyses[-1], "undecided"
    for seeds, level in levels(analyses):
        d, _ = compare_with_baseline(noise, case.lead, seeds)
        opponents = []
        if d.p <= level(ALPHA) and d.mean > 0:
            most = noise.most_time(case, seeds, level(ALPHA))
            if most > NO_LONGER:
                factor = next(f for f in LONGER if f >= most)
                longer[factor] = seeds
                more = case.lead - case.gain(factor) + (noise.finalist - noise.longer)[:seeds]
                difference = paired(more.tolist(), margin=0.0)
                opponents = [Opponent(name="longer", difference=difference, is_baseline=True)]
        rule = decide(Evidence(differences=[d], opponents=[opponents], level=level))
        outcome = rule.outcome
        if rule.stops:
            break
    return outcome, 2 * seeds + sum(longer.values())


RULES = {"earlier": confirm_earlier, "today": confirm}


def rates(case: Case, analyses: tuple[int, ...], confirmations: int) -> dict[str, dict[str, float]]:
    """Return the rates of outcomes and the mean number of trainings by the rules."""
    values = {}
    for name, rule in RULES.items():
        results = [rule(case, draw_noise(i, analyses[-1]), analyses) for i in range(confirmations)]
        outcomes = Counter(outcome for outcome, _ in results)
        values[name] = {
            "better": outcomes["better"] / confirmations,
            "cannot tell": outcomes["cannot tell"] / confirmations,
            "trainings": float(np.mean([trainings for _, trainings in results])),
        }
    return values


def compare_leads(confirmations: int = CONFIRMATIONS) -> dict[str, dict[str, dict[str, float]]]:
    """Return the rates of 8 seeds without interim analyses, with a lead of 5 sd at the measured time."""
    values = {}
    for noise, ratio in product((0.002, 0.03, 0.1), RATIOS):
        case = Case(ratio=ratio, time_noise=noise, buys=0.0, effect=5.0)
        values[f"noise {noise:.1%}, ratio {ratio:.2f}"] = rates(case, (8,), confirmations)
    return values


def compare_rules(
    confirmations: int = CONFIRMATIONS,
) -> Iterator[tuple[float, str, dict[str, dict[str, float]]]]:
    """Yield the effect, name and rates of each cell of the grid, of sequential confirmations of 10 seeds."""
    analyses = tuple(range(least_pairs(), 11))
    cases = [
        Case(ratio=ratio, time_noise=noise, buys=buys, effect=effect)
        for effect, buys, ratio, noise in product(EFFECTS, BUYS, RATIOS, TIME_NOISE)
    ]
    for case in sorted(cases, key=lambda case: case.lead):
        name = f"ratio {case.ratio:.2f}, noise {case.time_noise:.1%}, buys {case.buys}"
        yield case.effect, name, rates(case, analyses, confirmations * (1 if case.effect else PRECISE))


def summarise(cells: dict[str, dict[str, dict[str, float]]], effect: float) -> dict[str, dict[str, float]]:
    """Return the means over the 36 cells, and the worst rate of `better` among them and where time buys much.

    The worst is the largest without an effect and the smallest with one.
    """
    much = {name for name in cells if name.endswith(f"buys {MUCH}")}
    worst = min if effect else max
    return {
        rule: {
            **{
                key: float(np.mean([cells[name][rule][key] for name in cells if name not in much]))
                for key in ("better", "cannot tell", "trainings")
            },
            "worst": worst(cells[name][rule]["better"] for name in cells if name not in much),
            "worst where time buys 2 sd": worst(cells[name][rule]["better"] for name in much),
        }
        for rule in RULES
    }


Draw = Callable[[np.random.Generator, int], np.ndarray]
SIZES: dict[str, Draw] = {
    "normal": lambda random, n: random.normal(size=n),
    "t with 2 degrees": lambda random, n: random.standard_t(2, n),
    "bimodal": lambda random, n: random.choice([-1.0, 1.0], n) + random.normal(0, 0.2, n),
    "exponential": lambda random, n: random.exponential(size=n) - 1,
    "gamma": lambda random, n: random.gamma(2, size=n) - 2,
}


def solved(random: np.random.Generator, n: int) -> np.ndarray:
    """Return the lead, in points, of a candidate that solves a task in 90 % over one that never does."""
    return 100.0 * (random.random(n) < 0.9) + random.normal(0, 3, n)


def compare_tests(confirmations: int = CONFIRMATIONS) -> dict[str, dict[str, float]]:
    """Return the rates at which tests reject: without a difference, and with solved and unsolved runs."""
    cases = {f"size, {name}, {n} seeds": (draws, n) for name, draws in SIZES.items() for n in (6, 8, 10)}
    cases |= {f"power, solved in 90 %, {n} seeds": (solved, n) for n in (6, 8, 10, 12)}
    tests: dict[str, Callable[[np.ndarray], float]] = {
        "earlier": earlier_p,
        "today": lambda d: paired(d.tolist(), margin=0.0).p,
        "sign flips alone": sign_flip,
    }
    values = {}
    for name, (draws, n) in cases.items():
        random = np.random.default_rng(0)
        samples = [draws(random, n) for _ in range(PRECISE * confirmations)]
        values[name] = {test: float(np.mean([p(d) <= ALPHA for d in samples])) for test, p in tests.items()}
    return values


def show(name: str, values: dict[str, dict[str, float]]) -> None:
    parts = [
        f"{rule}: " + ", ".join(f"{key} {100 * v if key != 'trainings' else v:.1f}" for key, v in row.items())
        for rule, row in values.items()
    ]
    print(f"{name:42} {'; '.join(parts)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--confirmations", type=int, default=CONFIRMATIONS, help="simulated for each cell")
    number = parser.parse_args().confirmations
    tests = compare_tests(number)
    for name, row in tests.items():
        show(name, {"rejected": row})
    leads = compare_leads(number)
    for name, values in leads.items():
        show(name, values)
    cells: dict[float, dict[str, dict[str, dict[str, float]]]] = {effect: {} for effect in EFFECTS}
    for effect, name, values in compare_rules(number):
        cells[effect][name] = values
    summary = {effect: summarise(cells[effect], effect) for effect in EFFECTS}
    for effect, values in summary.items():
        show(f"effect {effect:g} sd", values)
    write_values(
        "judge",
        {
            "tests": tests,
            "leads": leads,
            "grid": {f"effect {effect:g}": values for effect, values in summary.items()},
            "cells": {f"effect {effect:g}": values for effect, values in cells.items()},
        },
    )


if __name__ == "__main__":
    main()
