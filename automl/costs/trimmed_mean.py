"""The mean of paired measurements without their extremes, for pairs that other processes may have disturbed.

Source: J. Tukey, D. McLaughlin, Less vulnerable confidence and significance procedures for location based on
a single sample (1963).
"""

import math
from collections.abc import Sequence

from automl.base.lazy import later
from automl.base.lazy import numpy as np

special = later("scipy.special")  # it takes half a second, and scipy.stats more than one
LEAST = 8  # number of values from which on there is a trimmed mean
TRIMMED = 0.2  # fraction of the values that is left out at each end, at least one value


def trimmed_mean(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float, float]:
    """Return the trimmed mean of `LEAST` or more values, with the ends of its interval of level 1 - `alpha`.

    It is the t interval of the winsorised error.
    """
    count = len(values)
    cut = max(1, int(TRIMMED * count))
    ordered = np.sort(np.asarray(values, float))
    kept = count - 2 * cut
    mean = float(ordered[cut : count - cut].mean())
    winsorised = float(np.clip(ordered, ordered[cut], ordered[count - cut - 1]).std(ddof=1))
    reach = float(special.stdtrit(kept - 1, 1 - alpha / 2)) * winsorised * math.sqrt(count) / kept
    return mean, mean - reach, mean + reach
