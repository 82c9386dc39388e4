"""Drawn pictures of *look up by colour*: which shape has the colour of the plain cell?

A picture has 4 x 4 cells. Four of them show a shape each, all in different colours, and a fifth one is filled
with one of these colours. The label is the shape of that colour. So the answer depends on two cells anywhere
in the picture, and neither of them has it alone. All random numbers come from a fixed seed.
"""

from collections.abc import Mapping

import numpy as np

CELLS, CELL = 4, 8  # in a row, and the pixels of one in a row
SHAPES: Mapping[str, tuple[str, ...]] = {
    "ring": ("####", "#..#", "#..#", "####"),
    "cross": ("#..#", ".##.", ".##.", "#..#"),
    "disc": (".##.", "####", "####", ".##."),
    "stripes": ("#.#.", "#.#.", "#.#.", "#.#."),
}
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]], np.uint8)
NOISE = 40  # largest value of the background, of 255
COUNTS: Mapping[str, int] = {"train": 6000, "validation": 1000, "test": 2000}

# Pictures, uint8 `(32, 32, 3)` each, and the int64 indices of their labels in `SHAPES`.
Drawn = tuple[list[np.ndarray], np.ndarray]


def draw_lookups() -> Mapping[str, Drawn]:
    """Draw the pictures of each split, in half a second."""
    bits = np.array([[[mark == "#" for mark in row] for row in shape] for shape in SHAPES.values()])
    shapes = bits.repeat(CELL // 4, axis=1).repeat(CELL // 4, axis=2)[..., None]
    random = np.random.default_rng(0)
    return {split: _draw(count, shapes, random) for split, count in COUNTS.items()}


def _draw(count: int, shapes: np.ndarray, random: np.random.Generator) -> Drawn:
    rows, few = np.arange(count), len(COLOURS)
    pictures = random.integers(0, NOISE, (count, CELLS, CELLS, CELL, CELL, 3)).astype(np.uint8)
    at = random.random((count, CELLS**2)).argsort(axis=1)[:, : few + 1]
    colours = COLOURS[random.random((count, few)).argsort(axis=1)]
    shown, asked = random.integers(len(shapes), size=(count, few)), random.integers(few, size=count)
    fills = [shapes[shown[:, i]] * colours[:, i, None, None] for i in range(few)]
    for place, fill in zip(at.T, [*fills, colours[rows, asked, None, None]], strict=True):
        cell = rows, *divmod(place, CELLS)
        pictures[cell] = np.maximum(pictures[cell], fill)
    side = CELLS * CELL
    images = pictures.swapaxes(2, 3).reshape(count, side, side, 3)
    return list(images), shown[rows, asked]
