"""An image, signals or tokens with the weights of a map.

The colours are cividis (J. Nuñez et al. (2018), arXiv 1712.01662), by the polynomials of d3-scale-chromatic.
They go from 0 to the largest weight of the picture, so that even weights give an even picture.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.polynomial.polynomial import polyval
from numpy.typing import NDArray

from automl.base.errors import InputError
from automl.base.escape import printable

Floats = NDArray[np.floating]
Bytes = NDArray[np.uint8]

STRENGTH = 0.65  # share of the heat in an overlay
QUERY = (255, 60, 30)  # colour of the frame around the query
WIDTH, SIGNALS, STRIP = 340, 120, 16  # units of a picture of signals
LIGHT = 0.179  # relative luminance (WCAG 2.1) above which black text has more contrast than white
_CIVIDIS = (
    (-4.54, -35.34, 2381.73, -6402.7, 7024.72, -2710.57),
    (32.49, 170.73, 52.82, -131.46, 176.58, -67.37),
    (81.24, 442.36, -2482.43, 6167.24, -6614.94, 2475.67),
)


def overlay(image: Bytes, heat: Floats, query: int | None = None) -> Bytes:
    """Lay the heat of a map over an image.

    Args:
        image: Pixels `(H, W, 3)`.
        heat: A weight for each position, `(*spatial,)`.
        query: The position whose row is shown. It gets a frame.

    Returns:
        Pixels `(H, W, 3)`: the image in grey below the colours of the weights.

    Raises:
        InputError: The positions are no grid on the image.
    """
    height, width = image.shape[:2]
    grid = as_grid(heat, height, width)
    grey = image @ np.array([0.299, 0.587, 0.114])
    mixed = (1 - STRENGTH) * grey[..., None] + STRENGTH * enlarge(colour(grid), (height, width))
    if query is not None:
        covered = enlarge(np.arange(grid.size).reshape(grid.shape) == query % grid.size, (height, width))
        rows, columns = np.nonzero(covered)
        inside = np.zeros_like(covered)
        inside[rows.min() + 1 : rows.max(), columns.min() + 1 : columns.max()] = True
        mixed[covered & ~inside] = QUERY
    drawn: Bytes = mixed.round().astype(np.uint8)
    return drawn


def draw_signals(values: Floats, heat: Floats, query: int | None = None) -> str:
    """Draw signals above a strip of weights, as the inner part of an SVG. Each signal is standardised.

    Args:
        values: Signals `(C, T)`.
        heat: A weight for each position, `(positions,)`, from the first step to the last.
        query: The position whose row is shown. It gets a line.

    Returns:
        Elements in a box of WIDTH by SIGNALS + STRIP units, in the colour of the text.
    """
    scale = np.nanstd(values, axis=1, keepdims=True)
    values = (values - np.nanmean(values, axis=1, keepdims=True)) / np.where(scale > 0, scale, 1)
    low, high = np.nanmin(values), np.nanmax(values)
    y = SIGNALS - 4 - (SIGNALS - 8) * (values - low) / (high - low or 1)
    x = (np.arange(values.shape[1]) + 0.5) * WIDTH / values.shape[1]
    lines = [
        f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, row, strict=True) if b == b)}" '
        f'fill="none" stroke="currentColor" stroke-width="1" opacity="{0.9 - 0.5 * i / len(values):.2f}"/>'
        for i, row in enumerate(y)
    ]
    step = WIDTH / len(heat)
    frame = (
        f'<rect x="{query * step:.2f}" width="{step:.2f}" height="{SIGNALS + STRIP}" fill="none" '
        f'stroke="{css(QUERY)}"/>'
        if query is not None
        else ""
    )
    return f'{"".join(lines)}<g transform="translate(0 {SIGNALS})">{draw_strip(heat)}</g>{frame}'


def draw_strip(weights: Floats) -> str:
    """Draw weights side by side, as the inner part of an SVG of WIDTH by STRIP units."""
    step = WIDTH / len(weights)
    return "".join(
        f'<rect x="{i * step:.2f}" width="{step + 0.3:.2f}" height="{STRIP}" fill="{css(shade)}"/>'
        for i, shade in enumerate(colour(weights))
    )


def svg(elements: str, height: float, ground: str = "none") -> str:
    """Return elements of a box of WIDTH by `height` units as an SVG."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}"><rect width="100%" height="100%" fill="{ground}"/>{elements}</svg>'
    )


def shade_tokens(tokens: Sequence[str], heat: Floats, query: int | None = None) -> str:
    """Return tokens as HTML, each on the colour of its weight in `heat`, `(T,)`.

    The token `query`, whose row is shown, gets a frame.
    """
    return " ".join(
        f'<span style="background:{css(shade)};color:{text_colour(shade)}'
        f'{f";outline:2px solid {css(QUERY)}" if i == query else ""}">{escape(printable(token))}</span>'
        for i, (token, shade) in enumerate(zip(tokens, colour(heat), strict=True))
    )


def text_colour(shade: Sequence[int] | Bytes) -> str:
    """Return the colour of text with the larger contrast to its ground."""
    linear = ((np.asarray(shade) / 255 + 0.055) / 1.055) ** 2.4
    return "#000" if linear @ np.array([0.2126, 0.7152, 0.0722]) > LIGHT else "#fff"


def css(shade: Sequence[int] | Bytes) -> str:
    """Return a colour of CSS."""
    return "#" + "".join(f"{int(value):02x}" for value in shade)


def colour(heat: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the colours of weights, uint8 `(*heat.shape, 3)`."""
    heat = np.asarray(heat, np.float64)
    scaled = np.clip(heat / (heat.max() or 1), 0, 1)
    channels = [polyval(scaled, coefficients) for coefficients in _CIVIDIS]
    return np.stack(channels, axis=-1).round().clip(0, 255).astype(np.uint8)


def as_grid(heat: NDArray[np.floating], height: int, width: int) -> NDArray[np.floating]:
    """Arrange the positions of a map, `(*spatial,)`, on an image of some size, `(rows, columns)`.

    Further dimensions, such as the disparities of a cost volume, are averaged. The tokens of a transformer
    are rows of patches. Raises InputError if they do not form a grid with the image's ratio of sides.
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
