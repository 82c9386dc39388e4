"""Each channel to mean 0 and standard deviation 1 over the training data, at real steps alone.

Padding becomes 0, which is also the mean of what is real; a channel without any value becomes 0 likewise.
"""

import numpy as np
import torch
from torch import Tensor


def compute_statistics(
    lengths: np.ndarray, means: np.ndarray, variances: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel, float32 (C,), over N sequences.

    lengths: (N,). means, variances: of each sequence, (N, C); NaN where a channel has no value. A channel
    that never changes gets a standard deviation of 1, and one without any value the mean 0, too.
    """
    weights = np.where(np.isnan(means), 0, lengths[:, None])  # (N, C)
    total = np.maximum(weights.sum(axis=0), 1)
    mean = (weights * np.nan_to_num(means)).sum(axis=0) / total
    spread = np.nan_to_num(variances + (means - mean) ** 2)
    std = np.sqrt((weights * spread).sum(axis=0) / total)
    # Rounding leaves the mean of a constant channel with a few units in the last of its 53 bits.
    std[std <= np.maximum(1e-12 * np.abs(mean), np.finfo(np.float32).tiny)] = 1
    return torch.from_numpy(mean.astype(np.float32)), torch.from_numpy(std.astype(np.float32))


def normalise(x: Tensor, mask: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Normalised `x` (B, C, T), as a deployed model does it too.

    mask: bool (B, T), True at real steps. mean, std: (C,).
    """
    x = (x - mean[:, None]) / std[:, None]  # (B, C, T)
    return torch.where(mask[:, None] & ~x.isnan(), x, 0.0)


def normalise_in_place(x: np.ndarray, mask: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """The same for arrays, for a batch on its way to a model.

    In one thread: on a busy machine those of PyTorch wait for each other at each operation, which took 100
    times as long as all of this.
    """
    x -= mean[:, None]
    x /= std[:, None]
    np.copyto(x, 0.0, where=~mask[:, None] | np.isnan(x))


def padding_mask(lengths: Tensor, steps: int) -> Tensor:
    """Bool (B, steps), True at the `lengths` (B,) real steps that come first."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None]
