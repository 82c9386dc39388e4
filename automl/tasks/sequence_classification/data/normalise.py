"""Fill gaps, and normalise each channel to mean 0 and standard deviation 1 over the training data.

Gaps are filled by linear interpolation over time. Only real steps count for the statistics. Padding becomes
0, which is also the mean of real values. So does a channel without any value.
"""

import numpy as np
import torch
from torch import Tensor


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


def compute_statistics(
    lengths: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel, float32 `(C,)`, over N sequences.

    A constant channel gets a standard deviation of 1. A channel without any value also gets a mean of 0.

    Args:
        lengths: number of steps of each sequence, `(N,)`.
        means: mean of each channel of each sequence, `(N, C)`, NaN if it has no value.
        variances: their variances, `(N, C)`.
    """
    weights = np.where(np.isnan(means), 0, lengths[:, None])  # (N, C)
    total = np.maximum(weights.sum(axis=0), 1)
    mean = (weights * np.nan_to_num(means)).sum(axis=0) / total
    spread = np.nan_to_num(variances + (means - mean) ** 2)
    std = np.sqrt((weights * spread).sum(axis=0) / total)
    # Rounding errors of the mean leave a constant channel with a tiny spread, a few units of the 53rd bit.
    std[std <= np.maximum(1e-12 * np.abs(mean), np.finfo(np.float32).tiny)] = 1
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def normalise(x: Tensor, mask: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return `x` `(B, C, T)` normalised by `(C,)`, as a deployed model does it; 0 where `mask` is False."""
    x = (x - mean[:, None]) / std[:, None]  # (B, C, T)
    return torch.where(mask[:, None] & ~x.isnan(), x, 0.0)


def normalise_in_place(x: np.ndarray, mask: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Normalise a batch of arrays in place, like `normalise`.

    It runs in one thread. On a busy machine PyTorch's threads wait for each other at every operation, which
    took 100 times as long as the whole function.
    """
    x -= mean[:, None]
    x /= std[:, None]
    np.copyto(x, 0.0, where=~mask[:, None] | np.isnan(x))


def padding_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return a mask, bool `(B, steps)`, that is True at the first `lengths` `(B,)` steps."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]
