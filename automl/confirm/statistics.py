"""Differences over seeds: estimates, intervals, tests, power.

Pure functions of numbers, in whatever unit these have. A difference is ours minus theirs; the larger, the
better. Several comparisons against one baseline, and interim analyses, both keep the type I
error rate.

An interval holds exactly the differences that its own test does not reject.

Sources: sign flips, R. A. Fisher, The Design of Experiments (1935), section 21, and their interval, J.
Hartigan, Using subsample values as typical values (1969); t without the skewness, P. Hall, On the removal of
skewness by transformation (1992); seeds crossed with images, A. Owen, The pigeonhole
bootstrap (2007); S. Holm, A simple sequentially rejective multiple test procedure (1979); two one-sided
tests, D. Schuirmann (1987); alpha spending, K. Lan and D. DeMets, Discrete sequential boundaries for clinical
trials (1983), with their O'Brien-Fleming-type function, its recursion from P. Armitage, C. McPherson and
B. Rowe (1969); nominal levels in place of boundaries for small samples, C. Jennison and B. Turnbull, Group
Sequential Methods (2000), section 4.4; several hypotheses in such a design, W. Maurer and F. Bretz (2013).
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import Literal, get_args

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import nctdtr, stdtr
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

ALPHA = 0.05  # the rate at which a difference is claimed where there is none
POWER = 0.8  # the rate at which one is found that is there
DRAWS = 20_000  # of a permutation test; up to 14 pairs it is exact
MOST = 100_000  # seeds beyond which no number is given
SKEWED = 2  # pairs that the test takes more than t's, for being right with skewed differences, too
EQUAL_TIME = 0.05  # a ratio of times is one of equal times if its interval is as near to 1

Outcome = Literal["better", "worse", "equivalent", "undecided", "cannot tell"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
Level = Callable[[float], float]  # the level of one test now, from the level of all looks together


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What is known of a difference.

    mean: its estimate. sd: of the differences, at least what the resolution of the scores leaves open, or
    None where they are not paired.
    p: that it is as far from zero if there is none, two-sided. p_margin: that it is so well within the margin
    if it is not within it at all. count: pairs of scores, or the smaller of the two counts.
    find_interval: returns `interval`, when that is asked for, since simulations of thousands do not need it.
    """

    mean: float
    sd: float | None
    p: float
    p_margin: float
    count: int
    find_interval: Callable[[], tuple[float, float]] = field(compare=False, repr=False)

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The differences that the test of `p` does not reject; infinite where it could reject none."""
        return self.find_interval()

    @property
    def low(self) -> float:
        return self.interval[0]

    @property
    def high(self) -> float:
        return self.interval[1]

    @property
    def bounded(self) -> bool:
        """There are enough pairs for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def paired(
    differences: Sequence[float], *, margin: float, resolution: float = 0.0, alpha: float = ALPHA
) -> Difference:
    """Compare two variants by their differences at one seed each: p, its interval, and two one-sided t tests.

    p is the larger one of two. Sign flips are exact, in as few pairs as one likes, where the differences lie
    alike on both sides of their mean. Where two variants have unlike spread and skewness they do not, and
    there t holds the level once its skewness is taken out of it.

    resolution: the step of the scores, such as what one test input is worth. A score is known to half a step:
    differences that are the same at each seed have a spread of rounding all the same. Where it is 0, such
    differences say nothing of how far seeds differ, and p_margin is 1.
    alpha: the level of the test that the interval belongs to.

    Raises ValueError for fewer than two.
    """
    d = np.asarray(differences, float)
    if len(d) < 2:
        raise ValueError(f"a paired comparison takes 2 or more pairs; got {len(d)}")
    mean = float(d.mean())
    # The variance of a rounding error is step^2 / 12, and a difference has two.
    sd = max(float(d.std(ddof=1)), resolution / math.sqrt(6))
    p, p_margin, spread = sign_flip(d), 1.0, sd > 1e-12 * max(1.0, abs(mean))
    if spread:
        p = max(p, skewed_t(d, sd))
        if margin > 0:
            p_margin = float(stdtr(len(d) - 1, (abs(mean) - margin) / sd * math.sqrt(len(d))))
    find = partial(_paired_interval, d, sd if spread else 0.0, alpha)
    return Difference(mean=mean, sd=sd, p=p, p_margin=p_margin, count=len(d), find_interval=find)


def _paired_interval(d: np.ndarray, sd: float, alpha: float) -> tuple[float, float]:
    """Return the shifts that one of the two tests does not reject. sd: 0 where there is no spread."""
    low, high = sign_flip_interval(d, alpha)
    if sd > 0:
        of_t = skewed_t_interval(d, sd, alpha)
        low, high = min(low, of_t[0]), max(high, of_t[1])
    return low, high


def unpaired(
    ours: Sequence[float], theirs: Sequence[float], *, margin: float, alpha: float = ALPHA
) -> Difference:
    """Compare scores that have no seeds in common: Welch's p and interval, and two one-sided Welch tests.

    Raises ValueError for fewer than two on a side.
    """
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    if min(len(a), len(b)) < 2:
        raise ValueError(f"a comparison takes 2 or more scores on each side; got {len(a)} and {len(b)}")
    mean = float(a.mean() - b.mean())
    if max(a.std(), b.std()) <= 1e-12 * max(1.0, abs(mean)):
        low, high, p, p_margin = -math.inf, math.inf, 1.0, 1.0  # nothing is known of the spread
    else:
        test = stats.ttest_ind(a, b, equal_var=False)
        low, high = map(float, test.confidence_interval(1 - alpha))
        p = float(test.pvalue)
        means = CompareMeans(DescrStatsW(a), DescrStatsW(b))
        p_margin = float(means.ttost_ind(-margin, margin, usevar="unequal")[0]) if margin > 0 else 1.0
    count = min(len(a), len(b))
    return Difference(
        mean=mean, sd=None, p=p, p_margin=p_margin, count=count, find_interval=lambda: (low, high)
    )


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p of the mean when each difference might as well have had the other sign.

    Exact up to 14 differences, by 20,000 draws beyond. (scipy's permutation_test gives the same and takes a
    hundred times longer, which is felt where verdicts are simulated by the thousand.)
    """
    d = np.asarray(differences, float)
    sums = np.abs(_signs(len(d)) @ d)
    # Sums that are equal but for rounding are equal.
    extreme = np.count_nonzero(sums >= abs(d.sum()) - 1e-9 * np.abs(d).sum())
    return float(extreme / len(sums))


def sign_flip_interval(differences: np.ndarray, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the shifts by which `differences` may be off with a `sign_flip` p above `alpha`.

    A pattern of signs is as extreme as what was observed for the shifts between the mean of the differences
    that it flips and the mean of the others. So the ends are order statistics of these means, and infinite
    where even the most extreme p is above `alpha`.
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


def skewed_t(differences: np.ndarray, sd: float) -> float:
    """Return the two-sided p of t as P. Hall transforms it: a monotone cubic that takes out the skewness.

    With a skewed null, t rejects too often on the side of the short tail: there a small mean comes with a
    small sd.
    """
    ratio, skew, count = float(differences.mean()) / sd, _skewness(differences, sd), len(differences)
    t = ratio + skew * ratio**2 / 3 + skew**2 * ratio**3 / 27 + skew / (6 * count)
    return float(2 * stdtr(count - 1, -abs(t) * math.sqrt(count)))


def skewed_t_interval(differences: np.ndarray, sd: float, alpha: float = ALPHA) -> tuple[float, float]:
    """Return the shifts by which `differences` may be off with a `skewed_t` p above `alpha`."""
    mean, skew, count = float(differences.mean()), _skewness(differences, sd), len(differences)
    reach = _quantile(count - 1, alpha) / math.sqrt(count)

    def ratio(t: float) -> float:  # the inverse of the cubic, which is ((1 + skew x / 3)^3 - 1) / skew
        t -= skew / (6 * count)
        return t if abs(skew) < 1e-6 else 3 / skew * (float(np.cbrt(1 + skew * t)) - 1)

    return mean - sd * ratio(reach), mean - sd * ratio(-reach)


def _skewness(differences: np.ndarray, sd: float) -> float:
    count, centred = len(differences), differences - differences.mean()
    return float((centred * centred * centred).mean()) / (sd * math.sqrt((count - 1) / count)) ** 3


def reach_over_inputs(differences: np.ndarray, alpha: float = ALPHA, *, step: float | None = None) -> float:
    """How far the mean of `differences` (seeds, images) may be off if seeds and images are both a sample.

    differences: of right and wrong answers to the same images with the same seeds: -1, 0 or 1 each; of a
    metric that is no mean over images, of the jackknife's pseudo-values, whose mean has its variance. Images
    are crossed with seeds, so that more seeds do not make up for few images.
    step: what one answer is worth, 1 / images where not given.

    Returns half the width of the interval. Its variance is that of a two-level bootstrap, which draws seeds
    and images anew independently, in closed form and without its bias, which counts the noise of single
    answers three times (A. Owen 2007); t's quantile has Satterthwaite's degrees of freedom. It is never
    smaller than for seeds alone, nor for images alone. On these the variants differ by one answer at least,
    even where they have not yet: an image that was not tested may be that one (A. Agresti and Y. Min 2005).
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
    reach = float(stats.t.isf(alpha / 2, (by_seed + by_image) ** 2 / parts)) * math.sqrt(variance)
    return max(reach, _quantile(max(1, seeds - 1), alpha) * math.sqrt(by_seed))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times more one is than the other: the geometric mean with its interval."""

    mean: float
    low: float
    high: float

    @property
    def equal(self) -> bool:
        """It is shown to lie near 1."""
        return self.low >= 1 - EQUAL_TIME and self.no_longer

    @property
    def no_longer(self) -> bool:
        """It is shown that the one is not more than the other, or hardly."""
        return self.high <= 1 + EQUAL_TIME


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """From positive numbers at one seed each: the t interval of the logarithms' differences.

    Raises ValueError for fewer than two pairs.
    """
    if len(ours) < 2:
        raise ValueError(f"a paired comparison takes 2 or more pairs; got {len(ours)}")
    logs = np.log(np.asarray(ours, float)) - np.log(np.asarray(theirs, float))
    mean = float(logs.mean())
    reach = _quantile(len(logs) - 1, ALPHA) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Ratio(mean=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def above_chance(scores: Sequence[float], chance: float, error: float) -> bool:
    """Whether the mean of scores is above `chance` by more than its error, one-sided.

    error: the standard deviation of a score of one who guesses. The images are the same with every seed, so
    that it does not shrink with more seeds.
    """
    shares = np.asarray(scores, float)
    spread = float(shares.var(ddof=1)) / len(shares) if len(shares) > 1 else 0.0
    reach = float(stats.norm.isf(ALPHA)) * math.hypot(error, math.sqrt(spread))
    return float(shares.mean()) - chance > reach


@lru_cache(maxsize=16)
def _signs(count: int) -> np.ndarray:
    """Signs of `count` differences, a row a pattern, first the observed one; one of two opposites."""
    if count <= 14:
        patterns = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
    else:
        patterns = np.random.default_rng(0).integers(0, 2, (DRAWS, count))
        patterns[0] = 0
    return np.asarray(1 - 2 * patterns, float)


@lru_cache(maxsize=1024)
def _quantile(free: int, alpha: float) -> float:
    return float(stats.t.isf(alpha / 2, free))


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


def holm_factors(p: Sequence[float], *, family: int | None = None) -> list[float]:
    """Return by how much Holm's procedure multiplies each p; its interval's level is divided by that."""
    family = len(p) if family is None else family
    return [h / one if one else float(family) for h, one in zip(holm(p, family=family), p, strict=True)]


def ahead(
    finalists: Sequence[Difference],
    *,
    level: Level,
    family: int,
    fair: Sequence[Collection[Outcome]],
) -> list[bool]:
    """Return which finalists are better than the baseline; the arguments are those of `verdict`."""
    rejected = step_down([f.p for f in finalists], level, family=family)
    return [
        r and f.mean > 0 and "better" in words for r, f, words in zip(rejected, finalists, fair, strict=True)
    ]


def verdict(
    finalists: Sequence[Difference],
    *,
    level: Level = lambda alpha: alpha,
    alpha: float = ALPHA,
    family: int | None = None,
    fair: Sequence[Collection[Outcome]] | None = None,
) -> tuple[Outcome, int]:
    """What can be said of finalists against one baseline, and which of them leads.

    family: how many finalists there were; of those that dropped out nothing is said but that they are not
    known to be equivalent.
    fair: what may be said of each, as far as the comparison with it was fair; everything where not given.

    `better`: a finalist is, by Holm's procedure over all of them; the leading one is the best of those that
    are. `worse`: the best of all is worse. `equivalent`: each lies within the margin. `cannot tell`: one of
    these, and it may not be said. `undecided` otherwise; the leading one is then the one with the largest
    mean.
    """
    fair = fair if fair is not None else [OUTCOMES] * len(finalists)
    rejected = step_down([f.p for f in finalists], level, alpha, family=family)
    order = sorted(range(len(finalists)), key=lambda i: finalists[i].mean, reverse=True)
    ahead = [i for i in order if rejected[i] and finalists[i].mean > 0]
    better = [i for i in ahead if "better" in fair[i]]
    if better:
        return "better", better[0]
    if ahead:
        return "cannot tell", ahead[0]
    lead = order[0]
    if rejected[lead]:
        return ("worse" if "worse" in fair[lead] else "cannot tell"), lead
    # Every one of them has to pass, which needs no correction (R. Berger 1982). Each of a pair of one-sided
    # tests has half the nominal level of a two-sided one of twice the rate.
    whole = family is None or family == len(finalists)
    if whole and all(f.p_margin <= level(2 * alpha) / 2 for f in finalists):
        return ("equivalent" if all("equivalent" in words for words in fair) else "cannot tell"), lead
    return "undecided", lead


def power(difference: float, sd: float, count: int, alpha: float = ALPHA) -> float:
    """The rate at which `count` pairs show a true `difference`, with a t test; `sd` is of the pairs."""
    if sd <= 0:
        return 1.0 if difference else alpha
    free, shift, bound = count - 1, abs(difference) / sd * math.sqrt(count), _quantile(count - 1, alpha)
    below, far_below = nctdtr(free, shift, bound), nctdtr(free, shift, -bound)
    return float(1 - below + (0.0 if math.isnan(far_below) else far_below))


def pairs_needed(difference: float, sd: float, alpha: float = ALPHA) -> int | None:
    """The fewest pairs that show a true `difference` at the rate `POWER`; None beyond 100,000.

    As many as with a t test, and the few more that `paired` takes; see `SKEWED`.
    """

    def shown(count: int) -> bool:
        return power(difference, sd, max(2, count - SKEWED), alpha) >= POWER

    low = least_pairs(alpha)
    high = low
    while not shown(high):
        low, high = high + 1, 2 * high
        if high > MOST:
            return None
    while low < high:
        middle = (low + high) // 2
        if not shown(middle):
            low = middle + 1
        else:
            high = middle
    return high


def spent(fraction: float, alpha: float) -> float:
    """The part of `alpha` that may be used up by the time that `fraction` of the pairs are there.

    As O'Brien and Fleming's boundaries have it, half of `alpha` on either side, and little of it early, so
    that the last look is almost as strict as one look alone would be.
    """
    return float(4 * stats.norm.sf(stats.norm.isf(alpha / 4) / math.sqrt(min(1.0, fraction))))


@lru_cache(maxsize=256)
def nominal_levels(
    looks: tuple[int, ...], alpha: float, spending: Callable[[float, float], float] = spent
) -> tuple[float, ...]:
    """The two-sided level of the test at each look, so that all of them together have the level `alpha`.

    looks: the number of pairs at each, the last being all that are planned. spending: as `spent`.
    """
    nodes, weights = np.polynomial.legendre.leggauss(96)
    points = mass = np.array([])  # where the sum stands that was not enough yet, and how likely
    levels, used, before = [], 0.0, 0.0
    for pairs in looks:
        fraction = pairs / looks[-1]
        target, step = spending(fraction, alpha) - used, math.sqrt(fraction - before)

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
