"""How large a space is, estimated from draws: it is a program, and its choices open further choices.

Source: D. Knuth, Estimating the Efficiency of Backtrack Programs (1975): the product of the number of choices
along a random path has the number of leaves of the tree as its expectation.
"""

import statistics
from dataclasses import dataclass
from math import inf, prod, sqrt
from time import monotonic

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from search.space import Space, random_draws

LEAST_DRAWS = 100


@dataclass(frozen=True)
class Size:
    """The number of combinations of choices, its standard error, and the most numbers that are continuous."""

    combinations: float
    error: float
    continuous: int


def measure_size(space: Space, draws: int = 2000, seconds: float = inf) -> Size:
    """Estimate the size of a space by random draws from it, for so many seconds at most."""
    weights, continuous = [], 0
    until = monotonic() + seconds
    for trial, config in random_draws(space, draws):
        if config is None:  # refused, and so none
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
    """How many values there are; 0 for a continuous range."""
    if isinstance(kind, CategoricalDistribution):
        return len(kind.choices)
    assert isinstance(kind, IntDistribution | FloatDistribution)
    if kind.step is None:
        return 0
    return int((kind.high - kind.low) / kind.step + 1 + 1e-9)
