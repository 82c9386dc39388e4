"""The bundled set: slanted planes, and handwritten digits in front of them, with exact disparities.

Surfaces are textured from the two photographs that come with scikit-learn. Each is a plane whose disparity is
`a + b x + c y` at column x and row y of the left image, so that the right image has its point `(x, y)` at
column `u = x - (a + b x + c y)`, and u has its point at `x = (u + a + c y) / (1 - b)`: both images and the
truth are exact. Of several surfaces the nearest one is seen, which has the largest disparity. A pixel of the
left image that is hidden in the right one, or outside of it, has no known disparity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

HEIGHT, WIDTH = 80, 176  # pixels
COUNTS: Mapping[str, int] = {"train": 400, "validation": 100, "test": 100}
FARTHEST, NEAREST = 3.0, 44.0  # pixels of disparity, in the middle of a surface
SLANT = 0.06  # pixels of disparity a pixel, at most
LEAST, MOST = 0.0, 47.5  # of any disparity
# Nothing can be matched in a white sky: textures with smaller differences of neighbours are drawn again, and
# all have grain, which both images see.
CONTRAST, TRIES, GRAIN = 7.0, 20, 6.0


@dataclass(frozen=True)
class Surface:
    """plane: a, b, c of its disparity. texture: float `(h, w, 3)`, seen at `zoom` of its pixels a pixel.

    box: left, top, width and height in the left image; None for a background. mask: float `(m, n)` over the
    box, above 0.5 where there is something; None where there is everywhere.
    """

    plane: tuple[float, float, float]
    texture: np.ndarray
    zoom: float
    box: tuple[float, float, float, float] | None = None
    mask: np.ndarray | None = None

    def disparity(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b, c = self.plane
        return a + b * x + c * y

    def left_column(self, u: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The column of the left image at which the point at column `u` of the right one is."""
        a, b, c = self.plane
        return (u + a + c * y) / (1 - b)

    def covers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Where it is, bool."""
        if self.box is None:
            return np.ones(x.shape, bool)
        left, top, width, height = self.box
        column, row = (x - left) / width, (y - top) / height
        found: np.ndarray = (column >= 0) & (column <= 1) & (row >= 0) & (row <= 1)
        if self.mask is not None:
            m, n = self.mask.shape
            at = interpolate(self.mask[..., None], column[found] * (n - 1), row[found] * (m - 1))
            found[found] = at[..., 0] > 0.5
        return found

    def colour(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """`(..., 3)`; the texture repeats as in a mirror."""
        h, w, _ = self.texture.shape
        return interpolate(self.texture, mirror(x * self.zoom, w - 1), mirror(y * self.zoom, h - 1))


def interpolate(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`values` (h, w, C) at columns x and rows y inside of it: `(..., C)`."""
    h, w, _ = values.shape
    column, row = np.minimum(x.astype(int), w - 2), np.minimum(y.astype(int), h - 2)
    along, down = (x - column)[..., None], (y - row)[..., None]
    upper = values[row, column] * (1 - along) + values[row, column + 1] * along
    lower = values[row + 1, column] * (1 - along) + values[row + 1, column + 1] * along
    found: np.ndarray = upper * (1 - down) + lower * down
    return found


def mirror(x: np.ndarray, end: float) -> np.ndarray:
    """Into 0 to `end`, back and forth."""
    return end - np.abs(x % (2 * end) - end)


Columns = Sequence[np.ndarray]  # for each surface the columns of the left image that are looked at


def render(surfaces: Sequence[Surface], height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both images, uint8 `(H, W, 3)`, and the left one's disparities, float32 `(H, W)`, inf where unknown."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    first, depth = _find_nearest(surfaces, [x] * len(surfaces), y)
    left = _render_colours(surfaces, first, [x] * len(surfaces), y)
    there = [surface.left_column(x, y) for surface in surfaces]
    right = _render_colours(surfaces, _find_nearest(surfaces, there, y)[0], there, y)
    u = x - depth  # where each pixel of the left image is in the right one
    _, front = _find_nearest(surfaces, [surface.left_column(u, y) for surface in surfaces], y)
    visible = (u >= 0) & (front <= depth + 1e-6)
    return left, right, np.where(visible, depth, np.inf).astype(np.float32)


def _find_nearest(
    surfaces: Sequence[Surface], places: Columns, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The number of the nearest surface at each pixel, and its disparity."""
    depths = np.stack(
        [
            np.where(surface.covers(x, y), surface.disparity(x, y), -np.inf)
            for surface, x in zip(surfaces, places, strict=True)
        ]
    )
    return depths.argmax(0), depths.max(0)


def _render_colours(
    surfaces: Sequence[Surface], first: np.ndarray, places: Columns, y: np.ndarray
) -> np.ndarray:
    """uint8 `(H, W, 3)` of the surfaces with the numbers `first`."""
    colour = np.zeros((*y.shape, 3))
    for i, (surface, x) in enumerate(zip(surfaces, places, strict=True)):
        mine = first == i
        colour[mine] = surface.colour(x[mine], y[mine])
    return colour.round().clip(0, 255).astype(np.uint8)


@cache
def _load_materials() -> tuple[list[np.ndarray], np.ndarray]:
    """The photographs, float `(h, w, 3)`, and digits `(1797, 8, 8)` from 0 to 1."""
    from sklearn.datasets import load_digits, load_sample_images  # takes a second

    photographs = [image.astype(np.float64) for image in load_sample_images().images]
    return photographs, load_digits().images / 16


def draw_scene(draw: np.random.Generator, height: int = HEIGHT, width: int = WIDTH) -> list[Surface]:
    """A background, one to three planes and two to four digits."""
    photographs, digits = _load_materials()

    def texture() -> tuple[np.ndarray, float]:
        for _ in range(TRIES):
            photograph = photographs[draw.integers(len(photographs))]
            h, w, _ = photograph.shape
            size = draw.integers(100, 200)
            top, left = draw.integers(h - size), draw.integers(w - size)
            patch = photograph[top : top + size, left : left + size]
            if np.abs(np.diff(patch, axis=1)).mean() > CONTRAST:
                break
        patch = patch[:, ::-1] if draw.random() < 0.5 else patch
        patch = patch[..., draw.permutation(3)] * draw.uniform(0.5, 0.8)
        return patch + draw.normal(25, GRAIN, patch.shape), draw.uniform(0.5, 1.0)

    def surface(
        depth: float, box: tuple[float, float, float, float] | None = None, mask: np.ndarray | None = None
    ) -> Surface:
        x, y, w, h = box or (0.0, 0.0, width, height)
        b, c = draw.uniform(-SLANT, SLANT, 2)
        # As far as it goes on both sides of its middle, no disparity may leave the range.
        reach = abs(b) * w / 2 + abs(c) * h / 2
        depth = float(np.clip(depth, LEAST + reach, MOST - reach))
        plane = (depth - b * (x + w / 2) - c * (y + h / 2), b, c)
        return Surface(plane, *texture(), box, mask)

    found = [surface(float(draw.uniform(FARTHEST, 12.0)))]
    nearer = np.sort(draw.uniform(8.0, NEAREST, draw.integers(3, 8)))
    planes = min(int(draw.integers(1, 4)), len(nearer) - 2)
    for i, depth in enumerate(nearer):
        side = draw.uniform(0.35, 0.7, 2) if i < planes else np.full(2, draw.uniform(0.3, 0.6))
        w, h = side[0] * (width / 2 if i < planes else height), side[1] * height
        box = (draw.uniform(-w / 4, width - 0.75 * w), draw.uniform(-h / 4, height - 0.75 * h), w, h)
        mask = None if i < planes else digits[draw.integers(len(digits))]
        found.append(surface(float(depth), box, mask))
    return found


def draw_pair(split: str, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a pair of a split, always the same one, as `render` does."""
    draw = np.random.default_rng([17, [*COUNTS].index(split), i])
    return render(draw_scene(draw), HEIGHT, WIDTH)
