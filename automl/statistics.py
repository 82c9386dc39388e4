"""Is it better? Differences over seeds: how large, how sure, and how many seeds it takes.

Pure functions of numbers, in whatever unit these have. A difference is ours minus theirs; the larger, the
better. Several comparisons against one baseline, and several looks while seeds still come in, both keep the
rate at which anything is said to differ when nothing does.

Sources: sign flips, R. A. Fisher, The Design of Experiments (1935), section 21; S. Holm, A simple
sequentially rejective multiple test procedure (1979); two one-sided tests, D. Schuirmann (1987); alpha
spending, K. Lan and D. DeMets, Discrete sequential boundaries for clinical trials (1983), with their
Pocock-type function, and its recursion from P. Armitage, C. McPherson and B. Rowe (1969); nominal levels in
place of boundaries for small samples, C. Jennison and B. Turnbull, Group Sequential Methods (2000), section
4.4; several hypotheses in such a design, W. Maurer and F. Bretz (2013).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import stdtr
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

ALPHA = 0.05  # the rate at which a difference is claimed where there is none
POWER = 0.8  # the rate at which one is found that is there
DRAWS = 20_000  # of a permutation test; up to 14 pairs it is exact
MOST = 100_000  # seeds beyond which nobody needs a number

Word = Literal["better", "worse", "equivalent", "undecided"]
Level = Callable[[float], float]  # the level of one test now, from the level of all looks together


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is known of a difference.

    mean, low, high: with its interval. sd: of the differences, or None where they are not paired.
    p: that it is as far from zero if there is none, two-sided. p_margin: that it is so well within the margin
    if it is not within it at all. count: pairs of scores, or the smaller of the two counts.
    """

    mean: float
    low: float
    high: float
    sd: float | None
    p: float
    p_margin: float
    count: int


def paired(differences: Sequence[float], *, margin: float, alpha: float = ALPHA) -> Difference:
    """From differences at one seed each: t interval, sign-flip p, and two one-sided t tests.

    Raises ValueError for fewer than two.
    """
    d = np.asarray(differences, float)
    if len(d) < 2:
        raise ValueError(f"a paired comparison takes 2 or more pairs; got {len(d)}")
    mean, sd = float(d.mean()), float(d.std(ddof=1))
    free, error = len(d) - 1, sd / math.sqrt(len(d))
    if sd <= 1e-12 * max(1.0, abs(mean)):  # the same difference each time: no t, and no doubt
        low, high, p_margin = mean, mean, float(abs(mean) >= margin)
    else:
        reach = _quantile(free, alpha) * error
        low, high = mean - reach, mean + reach
        p_margin = float(stdtr(free, (abs(mean) - margin) / error)) if margin > 0 else 1.0
    return Difference(mean=mean, low=low, high=high, sd=sd, p=sign_flip(d), p_margin=p_margin, count=len(d))


def unpaired(
    ours: Sequence[float], theirs: Sequence[float], *, margin: float, alpha: float = ALPHA
) -> Difference:
    """From scores that have no seeds in common: Welch's interval, permutation p, two one-sided Welch tests.

    Raises ValueError for fewer than two on a side.
    """
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    if min(len(a), len(b)) < 2:
        raise ValueError(f"a comparison takes 2 or more scores on each side; got {len(a)} and {len(b)}")
    mean = float(a.mean() - b.mean())
    if max(a.std(), b.std()) <= 1e-12 * max(1.0, abs(mean)):
        low, high, p_margin = mean, mean, float(abs(mean) >= margin)
    else:
        interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(1 - alpha)
        low, high = float(interval.low), float(interval.high)
        means = CompareMeans(DescrStatsW(a), DescrStatsW(b))
        p_margin = float(means.ttost_ind(-margin, margin, usevar="unequal")[0]) if margin > 0 else 1.0
    test = stats.permutation_test(
        (a, b), _mean_difference, vectorized=True, n_resamples=DRAWS, rng=np.random.default_rng(0)
    )
    return Difference(
        mean=mean,
        low=low,
        high=high,
        sd=None,
        p=float(test.pvalue),
        p_margin=p_margin,
        count=min(len(a), len(b)),
    )


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """The two-sided p of the mean when each difference might as well have had the other sign.

    Exact up to 14 differences, by 20,000 draws beyond. (scipy's permutation_test gives the same and takes a
    hundred times longer, which is felt where verdicts are simulated by the thousand.)
    """
    d = np.asarray(differences, float)
    sums = np.abs(_signs(len(d)) @ d)
    # Sums that are equal but for rounding are equal.
    extreme = np.count_nonzero(sums >= abs(d.sum()) - 1e-9 * np.abs(d).sum())
    return float(extreme / len(sums))


@lru_cache(maxsize=16)
def _signs(count: int) -> np.ndarray:
    """Signs of `count` differences, a row a pattern, first the observed one; one of two opposites."""
    if count <= 14:
        patterns = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
    else:
        patterns = np.random.default_rng(0).integers(0, 2, (DRAWS, count))
        patterns[0] = 0
    return np.asarray(1 - 2 * patterns, np.int8)


@lru_cache(maxsize=1024)
def _quantile(free: int, alpha: float) -> float:
    return float(stats.t.isf(alpha / 2, free))


def _mean_difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(np.mean(a, axis=axis) - np.mean(b, axis=axis))


def least_pairs(alpha: float = ALPHA) -> int:
    """The pairs below which no sign-flip p can reach `alpha`: n pairs have none below 2 / 2^n."""
    return max(2, math.ceil(math.log2(2 / alpha) - 1e-9))


def step_down(
    p: Sequence[float], level: Level, alpha: float = ALPHA, *, family: int | None = None
) -> list[bool]:
    """Which of several hypotheses are rejected, the smallest p first (Holm); at one look of several.

    With `level` the identity, this is Holm's procedure. The strictest test is at `level(alpha / family)`.
    family: how many there were to be, of which some may not have come to a p.
    """
    family = len(p) if family is None else family
    rejected = [False] * len(p)
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > level(alpha / (family - rank)) * (1 + 1e-9):
            break
        rejected[i] = True
    return rejected


def holm(p: Sequence[float], *, family: int | None = None) -> list[float]:
    """Holm's adjusted p values: what each is worth beside the others. family: as in `step_down`.

    (statsmodels' multipletests gives the same and collects all garbage each time: half a second in a search.)
    """
    family = len(p) if family is None else family
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (family - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def verdict(
    finalists: Sequence[Difference],
    *,
    level: Level = lambda alpha: alpha,
    alpha: float = ALPHA,
    family: int | None = None,
) -> tuple[Word, int]:
    """What can be said of finalists against one baseline, and which of them leads.

    family: how many finalists there were; of those that dropped out nothing is said but that they are not
    known to be equivalent.

    `better`: a finalist is, by Holm's procedure over all of them; the leading one is the best of those that
    are. `worse`: the best of all is worse. `equivalent`: each lies within the margin. `undecided`
    otherwise; the leading one is then the one with the largest mean.
    """
    rejected = step_down([f.p for f in finalists], level, alpha, family=family)
    order = sorted(range(len(finalists)), key=lambda i: finalists[i].mean, reverse=True)
    better = [i for i in order if rejected[i] and finalists[i].mean > 0]
    if better:
        return "better", better[0]
    lead = order[0]
    if rejected[lead]:
        return "worse", lead
    # Every one of them has to pass, which needs no correction (R. Berger 1982). Each of a pair of one-sided
    # tests has half the nominal level of a two-sided one of twice the rate.
    whole = family is None or family == len(finalists)
    if whole and all(f.p_margin <= level(2 * alpha) / 2 for f in finalists):
        return "equivalent", lead
    return "undecided", lead


def power(difference: float, sd: float, count: int, alpha: float = ALPHA) -> float:
    """The rate at which `count` pairs show a true `difference`, with a t test; `sd` is of the pairs."""
    if sd <= 0:
        return 1.0 if difference else alpha
    return float(TTestPower().power(abs(difference) / sd, count, alpha))


def pairs_needed(difference: float, sd: float, alpha: float = ALPHA, rate: float = POWER) -> int | None:
    """The fewest pairs that show a true `difference` at the given rate; None beyond 100,000."""
    low = least_pairs(alpha)
    high = low
    while power(difference, sd, high, alpha) < rate:
        low, high = high + 1, 2 * high
        if high > MOST:
            return None
    while low < high:
        middle = (low + high) // 2
        if power(difference, sd, middle, alpha) < rate:
            low = middle + 1
        else:
            high = middle
    return high


def spent(fraction: float, alpha: float) -> float:
    """The part of `alpha` that may be used up by the time that `fraction` of the pairs are there."""
    return alpha * math.log(1 + (math.e - 1) * min(1.0, fraction))


@lru_cache(maxsize=256)
def nominal_levels(looks: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The two-sided level of the test at each look, so that all of them together have the level `alpha`.

    looks: the number of pairs at each, the last being all that are planned.
    """
    nodes, weights = np.polynomial.legendre.leggauss(96)
    points = mass = np.array([])  # where the sum stands that was not enough yet, and how likely
    levels, used, before = [], 0.0, 0.0
    for pairs in looks:
        fraction = pairs / looks[-1]
        target, step = spent(fraction, alpha) - used, math.sqrt(fraction - before)

        reach = partial(_crossing, points=points, mass=mass, step=step, less=target)
        bound = float(brentq(reach, 0.0, 12.0, xtol=1e-12))
        levels.append(float(2 * stats.norm.sf(bound / math.sqrt(fraction))))
        new = bound * nodes
        if len(points):
            density = stats.norm.pdf((new[:, None] - points) / step) @ mass / step
        else:
            density = stats.norm.pdf(new / step) / step
        points, mass = new, density * weights * bound
        used, before = used + target, fraction
    return tuple(levels)


def _crossing(bound: float, points: np.ndarray, mass: np.ndarray, step: float, less: float) -> float:
    """How likely the sum leaves `bound` on either side at this look, less a number."""
    if not len(points):
        return float(2 * stats.norm.sf(bound / step)) - less
    out = stats.norm.sf((bound - points) / step) + stats.norm.sf((bound + points) / step)
    return float(mass @ out) - less
