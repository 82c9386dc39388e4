"""One image, whatever it is stored as, to a square of RGB pixels.

The whole image is squashed to a square and its aspect (width / height) is kept beside it. Rows of one
size can be memory-mapped and gathered by index, and nothing is lost at the borders: a crop taken later,
on the device, picks its rectangle in the image's true geometry by way of the aspect. A centre crop at
this point would throw pixels away for good, and padding would store and move pixels that are never used.
"""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from automl.data.images.picture import read_picture


def cache_side(size: int) -> int:
    """The side in pixels at which images are cached for training at `size` pixels.

    A quarter more, up to a multiple of 8: a random crop that keeps most of the image is then still
    scaled down to `size`, not blown up from fewer pixels.
    """
    return -(-size * 5 // 32) * 8


def decode(
    image: str | Path | BinaryIO | np.ndarray, side: int, changes: list[str] | None = None
) -> tuple[np.ndarray, float]:
    """Return the whole image as uint8 (side, side, 3), and its aspect, width / height.

    Args:
        image: a path, an open file or a uint8 array (height, width) or (height, width, 3).
        side: in pixels.
        changes: receives what was done to a file beside scaling it, as `read_picture` says it.

    Raises:
        ValueError, OSError, SyntaxError, ...: like `read_picture`.
    """
    if isinstance(image, np.ndarray):
        picture = Image.fromarray(image).convert("RGB")
        size = picture.size
    else:
        picture, size, _, done = read_picture(image, at_least=side)
        if changes is not None:
            changes += done
    # Pillow widens BILINEAR when it scales down, so it antialiases, and interpolates when it scales up.
    square = picture.resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(square), size[0] / size[1]
