"""Drawn pictures with several labels or a number each, in `labels.csv`."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = ("red", "green", "blue")
SIDE, PATCH = 24, 8


def write_table(root: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write `labels.csv`, whose first column is the files' names, and return the folder."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return root


def draw(root: Path, count: int, *, numbers: bool = False, listed: bool = True) -> Path:
    """Draw patches of up to three colours, which are the labels; or one whose brightness is the number.

    Labels are `listed` in one column, or have a column each.
    """
    random = np.random.default_rng(0)
    rows: list[list[object]] = []
    root.mkdir(parents=True)
    for i in range(count):
        pixels = random.integers(0, 40, (SIDE, SIDE, 3), dtype=np.uint8)
        brightness = random.uniform(0.3, 1)
        has = random.random(3) < ([1, 0, 0] if numbers else [0.5, 0.5, 0.3])
        has[0] |= listed and not has.any()
        for colour in np.flatnonzero(has):
            y, x = random.integers(0, SIDE - PATCH, 2)
            pixels[y : y + PATCH, x : x + PATCH, colour] = 255 * (brightness if numbers else 1)
        Image.fromarray(pixels).save(root / f"{i:03}.png")
        labels = ";".join(name for name, value in zip(COLOURS, has, strict=True) if value)
        target = [labels] if listed else [*map(int, has)]
        rows.append([f"{i:03}.png", *([round(1000 + 50 * brightness, 3)] if numbers else target)])
    columns = ["price"] if numbers else ["labels"] if listed else [*COLOURS]
    return write_table(root, ["file", *columns], rows)
