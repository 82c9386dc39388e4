"""The volume of matching costs of two images at each disparity."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cost_volume(left: Tensor, right: Tensor, disparities: int) -> Tensor:
    """Join the left features, at each disparity, with the right ones shifted by it.

    Two of `(B, C, H, W)` to `(B, 2 C, disparities, H, W)`. Positions outside of the right image are zero.
    """
    width = left.shape[-1]
    pairs = [
        F.pad(torch.cat([left[..., d:], right[..., : width - d]], 1), (d, 0)) for d in range(disparities)
    ]
    return torch.stack(pairs, 2)


def correlations(left: Tensor, right: Tensor, disparities: int, groups: int) -> Tensor:
    """Compute the mean product of left and right features in each group of channels, at each disparity.

    Two of `(B, C, H, W)` to `(B, groups, disparities, H, W)`. Positions outside of the right image are zero.
    """
    width = left.shape[-1]
    products = [left[..., d:] * right[..., : width - d] for d in range(disparities)]
    means = [F.pad(p.unflatten(1, (groups, -1)).mean(2), (d, 0)) for d, p in enumerate(products)]
    return torch.stack(means, 2)


def interpolation_weights(source: int, target: int) -> Tensor:
    """Return weights of linear interpolation from `source` to `target` points, float64 `(target, source)`."""
    eye = torch.eye(source, dtype=torch.float64)[None]
    weights: Tensor = F.interpolate(eye, size=target, mode="linear")[0].T
    return weights


def resize_costs(costs: Tensor, weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize costs `(B, D, H, W)` trilinearly to `(B, M, *size)`, in disparity by `weights` `(M, D)`."""
    wide = F.interpolate(costs, size=size, mode="bilinear")
    resized: Tensor = (weights.to(wide) @ wide.flatten(2)).unflatten(2, size)
    return resized


def soft_argmin(costs: Tensor) -> Tensor:
    """Return the mean disparity under the softmax of negated costs: `(B, M, H, W)` to `(B, H, W)`."""
    disparities = torch.arange(costs.shape[1], device=costs.device, dtype=costs.dtype)
    return (costs.softmax(1) * disparities[:, None, None]).sum(1)
