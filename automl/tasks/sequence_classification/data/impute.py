"""Fill missing values by linear interpolation over time, and the edges with the nearest value."""

import numpy as np


def fill_gaps(values: np.ndarray) -> np.ndarray:
    """Return a sequence `(C, T)` whose NaN values are filled by linear interpolation over steps.

    Before the first and after the last value of a channel, that value is repeated. A channel without any
    value stays NaN: `normalise` replaces it by the mean of the training data.
    """
    missing = np.isnan(values)
    if not missing.any():
        return values
    filled, steps = values.copy(), np.arange(values.shape[1])
    for channel in np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1)):
        known = ~missing[channel]
        filled[channel] = np.interp(steps, steps[known], values[channel, known])
    return filled
