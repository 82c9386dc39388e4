"""Size of a space, estimated from draws, since the choices of a space open further choices.

Source: D. Knuth, Estimating the Efficiency of Backtrack Programs (1975): the product of the number of choices
along a random path has the number of leaves of the tree as its expectation.
"""

import statistics
from dataclasses import dataclass
from math import inf, prod, sqrt
from time import monotonic

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from search.space import Space, draw_randomly

LEAST_DRAWS = 100


@dataclass(frozen=True)
class Size:
    """Size of a space.

    Attributes:
        combinations: The estimated number of combinations of discrete choices.
        error: The standard error of that estimate.
        continuous: The largest number of continuous parameters of a trial.
    """

    combinations: float
    error: float
    continuous: int


def measure_size(space: Space, draws: int = 2000, seconds: float = inf) -> Size:
    """Estimate the size of a space by random draws, within `seconds`."""
    weights, continuous = [], 0
    until = monotonic() + seconds
    for trial, config in draw_randomly(space, draws):
        if config is None:  # the space rejected the draw
            weights.append(0.0)
            continue
        choices = [_choices(kind) for kind in trial.distributions.values()]
        weights.append(float(prod(n for n in choices if n)))
        continuous = max(continuous, sum(not n for n in choices))
        if len(weights) >= LEAST_DRAWS and monotonic() > until:
            break
    mean = statistics.fmean(weights)
    return Size(mean, statistics.pstdev(weights) / sqrt(len(weights)), continuous)


def _choices(kind: BaseDistribution) -> int:
    """Return the number of values, or 0 for a continuous range."""
    if isinstance(kind, CategoricalDistribution):
        return len(kind.choices)
    assert isinstance(kind, IntDistribution | FloatDistribution)
    if kind.step is None:
        return 0
    return int((kind.high - kind.low) / kind.step + 1 + 1e-9)
