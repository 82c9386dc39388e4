"""Tests of several differences, at one analysis or at several: Holm's procedure, alpha spending, power.

Several comparisons with one baseline and interim analyses both keep the rate of type I errors.

Sources: S. Holm, A simple sequentially rejective multiple test procedure (1979); alpha spending, K. Lan and
D. DeMets, Discrete sequential boundaries for clinical trials (1983), with their O'Brien-Fleming-type
function, its recursion from P. Armitage, C. McPherson and B. Rowe (1969); nominal levels in place of
boundaries for small samples, C. Jennison and B. Turnbull, Group Sequential Methods (2000), section 4.4;
several hypotheses in such a design, W. Maurer and F. Bretz (2013).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Literal

from automl.base.lazy import later
from automl.base.lazy import numpy as np
from automl.judge.statistics import ALPHA, least_pairs, quantile

special, optimize = later("scipy.special"), later("scipy.optimize")  # half a second each
POWER = 0.8  # rate at which an existing difference is detected
MAX_PAIRS = 100  # largest number of seeds that is recommended
EXTRA_PAIRS = 2  # pairs that the test needs more than t, because it is also right for skewed differences

Outcome = Literal["better", "worse", "equivalent", "undecided", "cannot tell"]

Level = Callable[[float], float]  # the level of one analysis, from the level of all together


def step_down(p: Sequence[float], level: Level, *, family: int | None = None) -> list[bool]:
    """Return which hypotheses are rejected, tested in order of p, at one of several analyses.

    With the identity as `level` this is Holm's procedure. The strictest test is at `level(ALPHA / family)`.
    `family` is the planned number of hypotheses, of which some may have no p.
    """
    family = len(p) if family is None else family
    rejected = [False] * len(p)
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] > level(ALPHA / (family - rank)) * (1 + 1e-9):
            break
        rejected[i] = True
    return rejected


def holm(p: Sequence[float], *, family: int | None = None) -> list[float]:
    """Return Holm's adjusted p-values. `family` is as in `step_down`.

    statsmodels' multipletests gives the same, but collects all garbage each time: half a second in a search.
    """
    family = len(p) if family is None else family
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        largest = max(largest, min(1.0, (family - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def holm_factors(p: Sequence[float], *, family: int | None = None) -> list[float]:
    """Return the factors by which Holm's procedure multiplies p and divides the level of the interval."""
    family = len(p) if family is None else family
    return [
        adjusted / single if single else float(family)
        for adjusted, single in zip(holm(p, family=family), p, strict=True)
    ]


def compute_power(difference: float, sd: float, count: int, alpha: float = ALPHA) -> float:
    """Return the rate at which `count` pairs show a true `difference` with a t test. `sd` is of the pairs."""
    if sd <= 0:
        return 1.0 if difference else alpha
    free, shift, bound = count - 1, abs(difference) / sd * math.sqrt(count), quantile(count - 1, alpha)
    below, far_below = np.nan_to_num(
        special.nctdtr(free, shift, [bound, -bound])
    )  # scipy has nan for some near 0
    return float(1 - below + far_below)


def pairs_needed(difference: float, sd: float, alpha: float = ALPHA) -> int | None:
    """Return the least number of pairs that show `difference` at the rate `POWER`, None beyond 100."""
    counts = range(least_pairs(alpha), MAX_PAIRS + 1)
    powers = ((n, compute_power(difference, sd, n - EXTRA_PAIRS, alpha)) for n in counts)
    return next((n for n, power in powers if power >= POWER), None)


def detectable(sd: float, count: int, alpha: float = ALPHA) -> float | None:
    """Return the smallest difference that `count` pairs show at the rate `POWER`, None if they show none."""
    if count < least_pairs(alpha):
        return None
    return sd * float(
        optimize.brentq(lambda size: compute_power(size, 1.0, count - EXTRA_PAIRS, alpha) - POWER, 0.0, 100.0)
    )


def spent_alpha(fraction: float, alpha: float) -> float:
    """Return the part of `alpha` that may be used by the time that `fraction` of the pairs are complete.

    As in O'Brien and Fleming's boundaries, half of `alpha` is on either side and little of it is used early.
    So the last analysis is almost as strict as a single one would be.
    """
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / math.sqrt(min(1.0, fraction))))


@lru_cache(maxsize=256)
def nominal_levels(
    analyses: tuple[int, ...], alpha: float, spending: Callable[[float, float], float] = spent_alpha
) -> tuple[float, ...]:
    """Return the two-sided level of the test at each analysis, so that all together have the level `alpha`.

    `analyses` are the numbers of pairs, the last of which is the planned number. `spending` is like
    `spent_alpha`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(96)
    points = mass = np.array([])  # where the sum stands that was not enough yet, and how likely
    levels, used, before = [], 0.0, 0.0
    for pairs in analyses:
        fraction = pairs / analyses[-1]
        target, step = spending(fraction, alpha) - used, math.sqrt(fraction - before)

        reach = partial(_crossing, points=points, mass=mass, step=step, less=target)
        bound = float(optimize.brentq(reach, 0.0, 12.0, xtol=1e-12))
        levels.append(float(2 * special.ndtr(-bound / math.sqrt(fraction))))
        new = bound * nodes
        if len(points):
            density = _density((new[:, None] - points) / step) @ mass / step
        else:
            density = _density(new / step) / step
        points, mass = new, density * weights * bound
        used, before = used + target, fraction
    return tuple(levels)


def _crossing(bound: float, points: "np.ndarray", mass: "np.ndarray", step: float, less: float) -> float:
    """Return the probability that the sum leaves `bound` on either side at this analysis, minus `less`."""
    if not len(points):
        return float(2 * special.ndtr(-bound / step)) - less
    out = special.ndtr((points - bound) / step) + special.ndtr((-bound - points) / step)
    return float(mass @ out) - less


def _density(x: "np.ndarray") -> "np.ndarray":
    """Return the density of the normal distribution."""
    return np.asarray(np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi))
