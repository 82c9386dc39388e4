"""The bundled set: slanted planes with handwritten digits in front of them, with exact disparities.

The textures come from the two photographs of scikit-learn. Each surface is a plane whose disparity is `a + b
x + c y` at column x and row y of the left image. The point `(x, y)` is at column `u = x - (a + b x + c y)` of
the right image. Column u shows the point at `x = (u + a + c y) / (1 - b)`. So both images and the disparities
are exact. Of several surfaces the nearest one, with the largest disparity, is visible. A pixel of the left
image that is hidden in the right one, or outside of it, has no known disparity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

HEIGHT, WIDTH = 80, 176  # pixels
COUNTS: Mapping[str, int] = {"train": 400, "validation": 100, "test": 100}
FARTHEST, NEAREST = 3.0, 44.0  # pixels of disparity in the middle of a surface
SLANT = 0.06  # largest change of the disparity per pixel
LEAST, MOST = 0.0, 47.5  # range of all disparities
# A white sky cannot be matched. A texture whose neighbouring pixels differ by less than CONTRAST is drawn
# again, and all textures get grain that both images show.
CONTRAST, TRIES, GRAIN = 7.0, 20, 6.0


@dataclass(frozen=True)
class Surface:
    """A textured plane.

    Attributes:
        plane: a, b, c of its disparity.
        texture: float `(h, w, 3)`.
        zoom: pixels of the texture per pixel of the image.
        box: left, top, width and height in the left image; None for a background.
        mask: float `(m, n)` over the box; the surface exists where it is above 0.5. None: everywhere.
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
        """Return the column of the left image at which the point at column `u` of the right image is."""
        a, b, c = self.plane
        return (u + a + c * y) / (1 - b)

    def covers(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return whether the surface exists at each point, bool."""
        if self.box is None:
            return np.ones(x.shape, bool)
        left, top, width, height = self.box
        column, row = (x - left) / width, (y - top) / height
        covered: np.ndarray = (column >= 0) & (column <= 1) & (row >= 0) & (row <= 1)
        if self.mask is not None:
            m, n = self.mask.shape
            values = interpolate(self.mask[..., None], column[covered] * (n - 1), row[covered] * (m - 1))
            covered[covered] = values[..., 0] > 0.5
        return covered

    def colour(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the colours, `(..., 3)`. The texture is mirrored at its edges."""
        h, w, _ = self.texture.shape
        return interpolate(self.texture, mirror(x * self.zoom, w - 1), mirror(y * self.zoom, h - 1))


def interpolate(values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Interpolate `values` `(h, w, C)` linearly at columns x and rows y within it: `(..., C)`."""
    h, w, _ = values.shape
    column, row = np.minimum(x.astype(int), w - 2), np.minimum(y.astype(int), h - 2)
    along, down = (x - column)[..., None], (y - row)[..., None]
    upper = values[row, column] * (1 - along) + values[row, column + 1] * along
    lower = values[row + 1, column] * (1 - along) + values[row + 1, column + 1] * along
    result: np.ndarray = upper * (1 - down) + lower * down
    return result


def mirror(x: np.ndarray, end: float) -> np.ndarray:
    """Reflect x into the range from 0 to `end`."""
    return end - np.abs(x % (2 * end) - end)


Columns = Sequence[np.ndarray]  # for each surface, the columns of the left image to evaluate


def render(surfaces: Sequence[Surface], height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both images, uint8 `(H, W, 3)`, and the left disparities, float32 `(H, W)`, inf if unknown."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    first, depth = _find_nearest(surfaces, [x] * len(surfaces), y)
    left = _render_colours(surfaces, first, [x] * len(surfaces), y)
    columns = [surface.left_column(x, y) for surface in surfaces]
    right = _render_colours(surfaces, _find_nearest(surfaces, columns, y)[0], columns, y)
    u = x - depth  # the column of each left pixel in the right image
    _, front = _find_nearest(surfaces, [surface.left_column(u, y) for surface in surfaces], y)
    visible = (u >= 0) & (front <= depth + 1e-6)
    return left, right, np.where(visible, depth, np.inf).astype(np.float32)


def _find_nearest(
    surfaces: Sequence[Surface], columns: Columns, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of the nearest surface at each pixel, and its disparity."""
    depths = np.stack(
        [
            np.where(surface.covers(x, y), surface.disparity(x, y), -np.inf)
            for surface, x in zip(surfaces, columns, strict=True)
        ]
    )
    return depths.argmax(0), depths.max(0)


def _render_colours(
    surfaces: Sequence[Surface], first: np.ndarray, columns: Columns, y: np.ndarray
) -> np.ndarray:
    """Return uint8 `(H, W, 3)` of the surfaces with the indices `first`."""
    colour = np.zeros((*y.shape, 3))
    for i, (surface, x) in enumerate(zip(surfaces, columns, strict=True)):
        mine = first == i
        colour[mine] = surface.colour(x[mine], y[mine])
    return colour.round().clip(0, 255).astype(np.uint8)


@cache
def _load_materials() -> tuple[list[np.ndarray], np.ndarray]:
    """Return the photographs, float `(h, w, 3)`, and digits `(1797, 8, 8)` from 0 to 1."""
    from sklearn.datasets import load_digits, load_sample_images  # The import takes a second.

    return [image.astype(np.float64) for image in load_sample_images().images], load_digits().images / 16


def draw_scene(draw: np.random.Generator, height: int = HEIGHT, width: int = WIDTH) -> list[Surface]:
    """Draw a background, one to three planes and two to four digits."""
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
        # The disparities of the whole surface must stay within the range.
        reach = abs(b) * w / 2 + abs(c) * h / 2
        depth = float(np.clip(depth, LEAST + reach, MOST - reach))
        return Surface((depth - b * (x + w / 2) - c * (y + h / 2), b, c), *texture(), box, mask)

    surfaces = [surface(float(draw.uniform(FARTHEST, 12.0)))]
    nearer = np.sort(draw.uniform(8.0, NEAREST, draw.integers(3, 8)))
    planes = min(int(draw.integers(1, 4)), len(nearer) - 2)
    for i, depth in enumerate(nearer):
        side = draw.uniform(0.35, 0.7, 2) if i < planes else np.full(2, draw.uniform(0.3, 0.6))
        w, h = side[0] * (width / 2 if i < planes else height), side[1] * height
        box = (draw.uniform(-w / 4, width - 0.75 * w), draw.uniform(-h / 4, height - 0.75 * h), w, h)
        mask = None if i < planes else digits[draw.integers(len(digits))]
        surfaces.append(surface(float(depth), box, mask))
    return surfaces


def draw_pair(split: str, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pair `i` of a split, always the same, like `render`."""
    return render(draw_scene(np.random.default_rng([17, [*COUNTS].index(split), i])), HEIGHT, WIDTH)
