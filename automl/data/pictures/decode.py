"""Decode one image file to a square of RGB pixels.

The whole image is resized to a square. Its aspect ratio (width / height) is stored beside it. Rows of one
size can be memory-mapped and gathered by index. A crop on the device uses the aspect ratio to select a
rectangle in the image's true geometry. A centre crop at this point would lose pixels, and padding would store
and move pixels that are never used.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from automl.data.pictures.picture import read_picture


def cache_side(size: int) -> int:
    """Return the side in pixels at which images are cached for training at `size` pixels.

    It is a quarter more, rounded up to a multiple of 8. A random crop that keeps most of the image is then
    still scaled down to `size`, not up.
    """
    return -(-size * 5 // 32) * 8


def decode(
    image: str | Path | BinaryIO | np.ndarray, side: int, changes: list[str] | None = None
) -> tuple[np.ndarray, float]:
    """Return the whole image as uint8 `(side, side, 3)`, and its aspect ratio, width / height.

    Args:
        image: a path, an open file or a uint8 array `(H, W)` or `(H, W, 3)`.
        side: the side of the result in pixels.
        changes: receives descriptions of changes other than scaling, see `Picture.changes`.

    Raises:
        ValueError, OSError, SyntaxError, ...: Like `read_picture`.
    """
    if isinstance(image, np.ndarray):
        picture = Image.fromarray(image).convert("RGB")
        size = picture.size
    else:
        picture, size, _, new_changes = read_picture(image, at_least=side)
        if changes is not None:
            changes += new_changes
    # Pillow widens BILINEAR when it scales down, so it antialiases, and interpolates when it scales up.
    square = picture.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(square), size[0] / size[1]
