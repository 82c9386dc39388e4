"""Differences over seeds: estimates, intervals, tests.

Pure functions of numbers, in any unit. A difference is a variant's score minus the baseline's. Larger is
better. An interval has exactly the differences that the test of p does not reject.

Sources: sign flips, R. A. Fisher, The Design of Experiments (1935), section 21, and their interval, J.
Hartigan, Using subsample values as typical values (1969); t without the skewness, P. Hall, On the removal of
skewness by transformation (1992); seeds crossed with images, A. Owen, The pigeonhole bootstrap (2007); two
one-sided tests, D. Schuirmann (1987); failed runs, J. Lachin, Worst-rank score analysis (1999).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from automl.base.errors import InputError
from automl.base.lazy import later
from automl.base.lazy import numpy as np
from automl.base.serialise import read_value
from automl.base.units import pluralize
from automl.costs.trimmed_mean import LEAST, trimmed_mean

special = later("scipy.special")  # it takes half a second, and scipy.stats more than one
ALPHA = 0.05  # rate of false positives
DRAWS = 20_000  # draws of a permutation test; it is exact up to 14 pairs
T_FACTOR = 10  # by which p of t is multiplied where the skewness is too large for `skewed_t`
NO_LONGER = 1.02  # largest upper end of a time ratio that needs no longer training of the opponents


@dataclass(frozen=True)
class Interval:
    """An interval, whose ends are computed on demand, because simulations of thousands do not need them."""

    find: Callable[[], tuple[float, float]] = field(compare=False, repr=False)

    @cached_property
    def ends(self) -> tuple[float, float]:
        return self.find()

    def to_json(self) -> list[float | None]:
        """Return the ends. JSON has no infinity, so an infinite one is null."""
        return [end if math.isfinite(end) else None for end in self.ends]

    @classmethod
    def from_json(cls, value: object) -> "Interval":
        """Read the result of `to_json`. Raise InputError if it is damaged."""
        problems: list[str] = []
        read = read_value(tuple[float | None, float | None], value, "the interval", problems)
        if problems:
            raise InputError(problems[0])
        low, high = -math.inf if read[0] is None else read[0], math.inf if read[1] is None else read[1]
        return cls(lambda: (low, high))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Estimate of a difference.

    Attributes:
        mean: The estimate.
        sd: The standard deviation of the differences, at least that of the rounding by the resolution. None
            if they are not paired.
        p: The two-sided p-value of a difference of zero.
        p_margin: The p-value of a difference outside the margin.
        count: The number of pairs, or the smaller number of scores.
        ahead, behind: The number of pairs above and below 0. 0 each if they are not paired.
        interval: Differences that the test of `p` does not reject. Infinite if it could reject none.
        as_scored: The difference that the scores alone show, if p also counts failed runs.
    """

    mean: float
    sd: float | None
    p: float
    p_margin: float
    count: int
    ahead: int = 0
    behind: int = 0
    interval: Interval
    as_scored: "Difference | None" = field(default=None, repr=False)

    @property
    def low(self) -> float:
        return self.interval.ends[0]

    @property
    def high(self) -> float:
        return self.interval.ends[1]

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Return the interval, or None if there are too few pairs for one."""
        return self.interval.ends if all(map(math.isfinite, self.interval.ends)) else None

    @property
    def signs(self) -> str:
        """Return at how many seeds the sign is that of the mean."""
        word, same = ("ahead", self.ahead) if self.mean >= 0 else ("behind", self.behind)
        whole = f"{same} of" if same < self.count else "all" if same > 1 else "the"
        return f"{word} on {whole} {pluralize(self.count, 'seeds')}"

    def ends(self, decimals: int) -> str:
        """Return the interval in brackets, or nothing if there are too few pairs for one."""
        return f" ({self.low:.{decimals}f} to {self.high:.{decimals}f})" if self.bounds else ""

    def in_words(self, decimals: int) -> str:
        """Return the interval in words, also if there are too few pairs for one."""
        if not self.bounds:
            return f"no 95 % CI with {pluralize(self.count, 'seeds')}"
        return f"95 % CI {self.low:.{decimals}f} to {self.high:.{decimals}f}"


def paired(
    differences: Sequence[float], *, margin: float, resolution: float = 0.0, alpha: float = ALPHA
) -> Difference:
    """Compare two variants by their differences at each seed: p, its interval, and two one-sided t tests.

    p is the larger one of two. Sign flips are exact for any number of pairs if the differences are symmetric
    around their mean. If two variants differ in spread and skewness, they are not. In that case t keeps its
    level once the skewness is taken out of it. That has no power if most differences are equal and far from
    0, such as of solved and unsolved runs, so ten times the p of plain t is enough as well.

    Args:
        differences: The difference at each of two or more seeds.
        margin: The smallest difference that matters.
        resolution: The step of the scores, such as the effect of one test input. A score is known to half a
            step, so differences that are equal at all seeds still have a spread of rounding. If it is 0, such
            differences do not show the spread over seeds, and `p_margin` is 1.
        alpha: The level of the test that the interval belongs to.
    """
    d = np.asarray(differences, float)
    mean = float(d.mean())
    # The variance of a rounding error is step^2 / 12, and a difference has two.
    sd = max(float(d.std(ddof=1)), resolution / math.sqrt(6))
    p, p_margin, spread = sign_flip(d), 1.0, sd > 1e-12 * max(1.0, abs(mean))
    if spread:
        t = 2 * float(special.stdtr(len(d) - 1, -abs(mean) / sd * math.sqrt(len(d))))
        p = max(p, min(skewed_t(d, sd), T_FACTOR * t))
        if margin > 0:
            p_margin = float(special.stdtr(len(d) - 1, (abs(mean) - margin) / sd * math.sqrt(len(d))))

    def find_interval() -> tuple[float, float]:
        low, high = sign_flip_interval(d, alpha)
        if spread:  # A shift is in it if the flips do not reject it, or neither t does.
            reach = quantile(len(d) - 1, alpha / T_FACTOR) * sd / math.sqrt(len(d))
            first, last = skewed_t_interval(d, sd, alpha)
            low, high = min(low, max(first, mean - reach)), max(high, min(last, mean + reach))
        return low, high

    return Difference(
        mean=mean,
        sd=sd,
        p=p,
        p_margin=p_margin,
        count=len(d),
        ahead=int((d > 0).sum()),
        behind=int((d < 0).sum()),
        interval=Interval(find_interval),
    )


def count_failures(
    scored: Difference, differences: Sequence[float], failed: Sequence[bool], alpha: float = ALPHA
) -> Difference:
    """Return a difference that claims nothing because of pairs with failed runs.

    A run that failed and was tried again may be a lucky one. So what is claimed must also hold if each of
    these pairs were the largest difference, in favour of either side. This is a worst-rank analysis
    (J. Lachin 1999) by sign flips.

    `scored` is the difference that the scores show. `failed` is True for a pair one side of which failed more
    often than the other.
    """
    largest = float(np.abs(differences).max())
    sides = [np.where(failed, size, differences) for size in (-largest, largest)]
    p = [sign_flip(side) if side.mean() * scored.mean > 0 else 1.0 for side in sides]

    def find_interval() -> tuple[float, float]:
        both = (sign_flip_interval(side, alpha) for side in sides)
        lows, highs = zip(scored.interval.ends, *both, strict=True)
        return min(lows), max(highs)

    interval = Interval(find_interval)
    return replace(scored, p=max(scored.p, *p), p_margin=1.0, interval=interval, as_scored=scored)


def sign_flip(differences: "Sequence[float] | np.ndarray") -> float:
    """Return the two-sided p of the mean if each difference could have had the other sign.

    Exact up to 14 differences, with 20,000 draws beyond. scipy's permutation_test gives the same and takes a
    hundred times longer, too long to simulate thousands of verdicts.
    """
    d = np.asarray(differences, float)
    sums = np.abs(_signs(len(d)) @ d)
    # Sums that are equal but for rounding are equal.
    extreme = np.count_nonzero(sums >= abs(d.sum()) - 1e-9 * np.abs(d).sum())
    return float(extreme / len(sums))


def sign_flip_interval(differences: "np.ndarray", alpha: float = ALPHA) -> tuple[float, float]:
    """Return the shifts by which `differences` may be off with a `sign_flip` p above `alpha`.

    A pattern of signs is as extreme as the observed one for the shifts between two means: the mean of the
    differences that it flips, and the mean of the others. So the ends are order statistics of these means.
    They are infinite if even the most extreme p is above `alpha`.
    """
    d, signs = differences, _signs(len(differences))[1:]  # without the observed pattern
    least = math.floor(alpha * (len(signs) + 1) * (1 + 1e-9))  # patterns, the observed one included
    if least < 1:
        return -math.inf, math.inf
    kept = np.count_nonzero(signs > 0, axis=1)
    sums, total, count = signs @ d, float(d.sum()), len(d)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.stack([(total + sums) / (2 * kept), (total - sums) / (2 * (count - kept))])
    means[:, (kept == 0) | (kept == count)] = [[-math.inf], [math.inf]]  # as extreme for every shift
    lows, highs = np.sort(means.min(0)), np.sort(means.max(0))
    return float(lows[least - 1]), float(highs[-least])


def skewed_t(differences: "np.ndarray", sd: float) -> float:
    """Return the two-sided p of t as P. Hall transforms it: a monotone cubic that takes out the skewness.

    With a skewed null, t rejects too often on the side of the short tail: there a small mean comes with a
    small sd.
    """
    ratio, skew, count = float(differences.mean()) / sd, _skewness(differences, sd), len(differences)
    t = ratio + skew * ratio**2 / 3 + skew**2 * ratio**3 / 27 + skew / (6 * count)
    return float(2 * special.stdtr(count - 1, -abs(t) * math.sqrt(count)))


def skewed_t_interval(differences: "np.ndarray", sd: float, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the shifts by which `differences` may be off with a `skewed_t` p above `alpha`."""
    mean, skew, count = float(differences.mean()), _skewness(differences, sd), len(differences)
    reach = quantile(count - 1, alpha) / math.sqrt(count)

    def ratio(t: float) -> float:  # the inverse of the cubic, which is ((1 + skew x / 3)^3 - 1) / skew
        t -= skew / (6 * count)
        return t if abs(skew) < 1e-6 else 3 / skew * (float(np.cbrt(1 + skew * t)) - 1)

    return mean - sd * ratio(reach), mean - sd * ratio(-reach)


def _skewness(differences: "np.ndarray", sd: float) -> float:
    count, centred = len(differences), differences - differences.mean()
    return float((centred * centred * centred).mean()) / (sd * math.sqrt((count - 1) / count)) ** 3


def reach_over_inputs(differences: "np.ndarray", alpha: float = ALPHA, *, step: float | None = None) -> float:
    """Return half the width of the interval of the mean if seeds and images are both a sample.

    The variance is that of a two-level bootstrap, which draws seeds and images independently. It is computed
    in closed form and without the bias of the bootstrap, which counts the noise of single answers three times
    (A. Owen 2007). The quantile of t has Satterthwaite's degrees of freedom. The result is never smaller than
    for seeds alone, nor for images alone. For images alone, the variants differ by at least one answer,
    because an image that was not tested may be that one (A. Agresti and Y. Min 2005). Images are crossed with
    seeds, so more seeds do not compensate for few images.

    Args:
        differences: Differences of right and wrong answers, `(seeds, images)`: -1, 0 or 1 each. For a metric
            that is no mean over images, those of the jackknife's pseudo-values, whose mean has its variance.
        alpha: The level of the interval.
        step: The effect of one answer. By default 1 / images.
    """
    seeds, images = differences.shape
    d = np.asarray(differences, float)
    whole, of_seed, of_image = d.mean(), d.mean(1), d.mean(0)
    by_seed = float(of_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
    least = 1 / images if step is None else step
    by_image = max(float(of_image.var(ddof=1)) / images if images > 1 else 0.0, least**2)
    rest = d - of_seed[:, None] - of_image[None, :] + whole
    free = (seeds - 1) * (images - 1)
    twice = float((rest * rest).sum()) / free / (seeds * images) if free else 0.0
    variance = max(by_seed + by_image - twice, by_seed, by_image)
    parts = by_seed**2 / max(1, seeds - 1) + by_image**2 / max(1, images - 1)
    reach = float(special.stdtrit((by_seed + by_image) ** 2 / parts, 1 - alpha / 2)) * math.sqrt(variance)
    return max(reach, quantile(max(1, seeds - 1), alpha) * math.sqrt(by_seed))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Geometric mean of ratios with its interval."""

    mean: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """Return the ratio of positive numbers at the same seeds, with the t interval of their logarithms.

    There are two or more pairs. From eight on it is the trimmed mean, so that a pair that another process
    disturbed does not decide.
    """
    logs = np.log(np.asarray(ours, float)) - np.log(np.asarray(theirs, float))
    if len(logs) < LEAST:
        mean = float(logs.mean())
        reach = quantile(len(logs) - 1, alpha) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
        low, high = mean - reach, mean + reach
    else:
        mean, low, high = trimmed_mean(logs.tolist(), alpha)
    return Ratio(mean=math.exp(mean), low=math.exp(low), high=math.exp(high))


def above_chance(scores: Sequence[float], chance: float, error: float) -> bool:
    """Return whether the mean of scores is above `chance` by more than its error, one-sided.

    `error` is the standard deviation of the score of guessing. All seeds have the same images, so more seeds
    do not reduce it.
    """
    values = np.asarray(scores, float)
    spread = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    reach = float(special.ndtri(1 - ALPHA)) * math.hypot(error, math.sqrt(spread))
    return float(values.mean()) - chance > reach


@lru_cache(maxsize=16)
def _signs(count: int) -> "np.ndarray":
    """Return patterns of signs as rows, the observed one first, one of two opposites."""
    if count <= 14:
        patterns = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
    else:
        patterns = np.random.default_rng(0).integers(0, 2, (DRAWS, count))
        patterns[0] = 0
    return np.asarray(1 - 2 * patterns, float)


@lru_cache(maxsize=1024)
def quantile(free: int, alpha: float) -> float:
    return float(special.stdtrit(free, 1 - alpha / 2))


def least_pairs(alpha: float = ALPHA) -> int:
    """Return the least number of pairs at which a sign-flip p can reach `alpha`: it is at least 2 / 2^n."""
    return max(2, math.ceil(math.log2(2 / alpha) - 1e-9))
