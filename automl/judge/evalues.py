"""Tests of a stream of changes: e-processes, online control of false discoveries, and futility.

An e-value is a number whose mean is at most 1 if there is no gain. So it reaches 1 / level with at most that
probability, whenever the training of pairs stops.

Sources: e-LOND, Z. Xu and A. Ramdas, Online multiple testing with e-values (2024, arXiv 2311.06412);
e-processes and stopping, A. Ramdas, P. Grünwald, V. Vovk and G. Shafer, Game-theoretic statistics and safe
anytime-valid inference (2023); futility, A. Wald, Sequential tests of statistical hypotheses (1945).
"""

import math
from collections.abc import Iterator

from automl.base.lazy import numpy as np
from automl.judge.statistics import ALPHA

SCREEN, POOL = 6, 10  # largest number of pairs of a screen, and seeds that its baseline has in all
SEEDS = 2**31  # seeds are below it
MOST = 60  # default of the largest number of pairs of a test
FEW = 10  # pairs below which no doubt about their distribution is reported
STAKE = 0.4  # of the bet on the next sign. Larger ones see signs more than sizes, so skewness deceives them
DECAY = 1.3  # test number t has a share of the level that falls with t to this power
WHOLE = 3.931949211809544  # sum of these shares: zeta(DECAY), for which SciPy takes half a second to load
GAIN = 1.0  # that futility has in view, in standard deviations of the paired difference
# Bound of its likelihood ratio: at 3 pairs, for each pair beyond, and at most.
FLOOR, SLOPE, CEILING = -1.3, 0.1, 0.5


def log_e_values(differences: "np.ndarray", before: "np.ndarray") -> "np.ndarray":
    """Return the logarithm of the e-value after each pair of a test.

    Each pair bets on a positive difference: the e-value is multiplied by `1 + tanh(STAKE * d / s)`. If both
    signs are equally probable, this has the mean 1, whatever the size of the difference. `s` is the root mean
    square of the differences so far, this one included.

    Args:
        differences: Paired differences of the test, above 0 if the candidate is better, `(..., pairs)`.
        before: Paired differences of the screen, `(..., pairs)`. Only their sizes are used.
    """
    squares = np.cumsum(differences**2, axis=-1) + (before**2).sum(axis=-1, keepdims=True)
    count = before.shape[-1] + np.arange(1, differences.shape[-1] + 1)
    scale = np.sqrt(squares / count)
    with np.errstate(invalid="ignore"):
        ratio = np.where(scale > 0, differences / scale, 0.0)
    return np.asarray(np.cumsum(np.log1p(np.tanh(STAKE * ratio)), axis=-1))


def level(index: "int | np.ndarray", discoveries: "int | np.ndarray") -> "np.ndarray":
    """Return the level of test number `index`, counted from 1, by e-LOND.

    `discoveries` are the changes that were accepted so far. Among accepted changes, at most 5 % are false on
    average, however the tests depend on each other.
    """
    part = np.asarray(index, float) ** -DECAY / WHOLE
    return np.asarray(ALPHA * part * (np.asarray(discoveries) + 1))


def least_pairs() -> int:
    """Return the least number of pairs that may reach the first level, which is the highest."""
    return math.ceil(-math.log(float(level(1, 0))) / math.log1p(math.tanh(STAKE)))


def share_left(index: int) -> float:
    """Return the share of the level that is left after `index` tests."""
    return float(1 - sum(test**-DECAY for test in range(1, index + 1)) / WHOLE)


def find_doubts(differences: "np.ndarray") -> Iterator[str]:
    """Yield how the pairs seem to break an assumption, each by two standard errors."""
    count, centred = len(differences), differences - differences.mean()
    square = float(centred @ centred)
    if count < FEW or square == 0:
        return
    skewness = float((centred**3).mean()) / (square / count) ** 1.5
    if skewness < -2 * math.sqrt(6 / count):
        yield (
            f"Do not rely on the 5 % of the ledger: the candidate often gains a little and seldom loses much "
            f"(skewness {skewness:.1f}), and so it may win most pairs without a gain on average."
        )
    correlation = float(centred[1:] @ centred[:-1]) / square
    if correlation > 2 / math.sqrt(count):
        yield (
            f"Do not rely on the 5 % of the ledger: pairs in a row are alike ({correlation:.2f} of 1), "
            f"as if the machine or a state that runs share had changed."
        )


def is_futile(differences: "np.ndarray") -> "np.ndarray":
    """Return after each pair whether a gain is out of sight, `(..., pairs)`.

    `differences` are those of the screen, followed by those of the test. The rule is Wald's, of a gain of one
    standard deviation against none. It decides only when to stop, so its errors cost power and nothing else.
    """
    count = np.arange(1, differences.shape[-1] + 1)
    mean = np.cumsum(differences, axis=-1) / count
    squares = np.cumsum(differences**2, axis=-1) - count * mean**2
    sd = np.sqrt(np.maximum(squares, 0.0) / np.maximum(count - 1, 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.nan_to_num(mean / sd, nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    bound = np.minimum(CEILING, FLOOR + SLOPE * np.maximum(0, count - 3))
    return np.asarray((count >= 2) & (count * (ratio - GAIN / 2) * GAIN < bound))


def interval(differences: "np.ndarray", before: "np.ndarray", alpha: float = ALPHA) -> tuple[float, float]:
    """Return an interval of the difference that holds whenever the test stops.

    It has the shifts that two e-processes, one on either side, do not reject together. It assumes that
    differences are symmetric around the true one. It is infinite with too few pairs.
    """
    mean = float(differences.mean())
    unit = max(float(differences.std()), 1e-9 * max(1.0, abs(mean)))

    def rejected(shifts: "np.ndarray") -> "np.ndarray":
        own, screen = differences - shifts[:, None], before - shifts[:, None]
        ends = [log_e_values(sign * own, screen)[:, -1] for sign in (1, -1)]
        return np.asarray(np.logaddexp(*ends) - math.log(2) >= -math.log(alpha))

    limits = []
    for sign in (-1, 1):
        shifts = mean + sign * unit * np.concatenate([[0.0], np.geomspace(1e-3, 1e6, 4000)])
        last = int(np.flatnonzero(~rejected(shifts)).max(initial=0))
        if last == len(shifts) - 1:
            return -math.inf, math.inf
        limits.append(float(shifts[last + 1]))
    return limits[0], limits[1]
