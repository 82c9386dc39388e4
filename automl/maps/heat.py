"""Colours of weights, and the weights at the resolution of an input.

The colours are cividis (J. Nuñez et al. (2018), arXiv 1712.01662), by the polynomials of d3-scale-chromatic.
They go from 0 to the largest weight of the picture, so that even weights give an even picture.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from automl.base.errors import InputError

_CIVIDIS = (
    (-4.54, -35.34, 2381.73, -6402.7, 7024.72, -2710.57),
    (32.49, 170.73, 52.82, -131.46, 176.58, -67.37),
    (81.24, 442.36, -2482.43, 6167.24, -6614.94, 2475.67),
)


def colour(heat: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the colours of weights, uint8 `(*heat.shape, 3)`."""
    heat = np.asarray(heat, np.float64)
    scaled = np.clip(heat / (heat.max() or 1), 0, 1)
    channels = [polyval(scaled, coefficients) for coefficients in _CIVIDIS]
    return np.stack(channels, axis=-1).round().clip(0, 255).astype(np.uint8)


def as_grid(heat: NDArray[np.floating], height: int, width: int) -> NDArray[np.floating]:
    """Arrange the positions of a map on an image, `(rows, columns)`.

    Further dimensions, such as the disparities of a cost volume, are averaged. The tokens of a transformer
    are rows of patches.

    Args:
        heat: A weight for each position, `(*spatial,)`.
        height: Height of the image.
        width: Width of the image.

    Raises:
        InputError: The tokens do not form a grid with the image's ratio of sides.
    """
    if heat.ndim > 1:
        mean: NDArray[np.floating] = heat.reshape(-1, *heat.shape[-2:]).mean(0)
        return mean
    rows = max(1, round((len(heat) * height / width) ** 0.5))
    if len(heat) % rows:
        raise InputError(f"the {len(heat)} positions of the map are no grid on {width} x {height} pixels")
    return heat.reshape(rows, -1)


def enlarge(grid: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """Return the weight of each pixel: that of the position which covers it.

    Nothing is interpolated, so that the picture shows the resolution of the map.
    """
    for axis, size in enumerate(shape):
        grid = grid.take(np.arange(size) * grid.shape[axis] // size, axis)
    return grid
