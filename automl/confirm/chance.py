"""What one who guesses may come to."""

import numpy as np
from scipy.special import bdtrc, ndtri

from search.metric import Chance, Metric

GUESSED = 0.001  # the rate at which one that guesses comes above `guessing`


def guessing(chance: float, inputs: int) -> float:
    """The share of right answers to `inputs` questions that one who guesses does not exceed.

    chance: the share that it has in the long run. It comes above in one of a thousand cases at most, by the
    binomial distribution; of very few inputs all may be guessed.
    """
    above = bdtrc(np.arange(inputs + 1.0), inputs, chance)  # P(more than k right answers)
    return float(np.argmax(above <= GUESSED)) / inputs


def bound(chance: Chance, inputs: int, metric: Metric) -> float:
    """The score than which one who guesses is better in one of a thousand cases at most.

    Of an accuracy it is exact; of others it goes by the normal distribution.
    """
    if metric.noise == "binomial":
        return guessing(chance.value, inputs)
    return chance.value + metric.sign * float(ndtri(1 - GUESSED)) * chance.error
