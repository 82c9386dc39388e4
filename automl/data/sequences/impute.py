"""Missing values: a line through time between the values on both sides, which the edges hold."""

import numpy as np


def fill_gaps(values: np.ndarray) -> np.ndarray:
    """A sequence (C, T) whose gaps of NaN are filled by linear interpolation over steps.

    Before a channel's first value and behind its last one it keeps that value. A channel without any value
    stays NaN: `normalise` gives it the mean of the training data.
    """
    missing = np.isnan(values)
    if not missing.any():
        return values
    filled, steps = values.copy(), np.arange(values.shape[1])
    for channel in np.flatnonzero(missing.any(axis=1) & ~missing.all(axis=1)):
        known = ~missing[channel]
        filled[channel] = np.interp(steps, steps[known], values[channel, known])
    return filled
