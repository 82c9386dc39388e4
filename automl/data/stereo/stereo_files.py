"""One image or disparity map from a file. A disparity that is not known is infinite."""

from pathlib import Path

import numpy as np

from attention.errors import InputError
from automl.data.images.picture import open_picture, read_channel
from automl.data.stereo.pfm import read_pfm

KITTI_SCALE = 256.0  # a pixel of disparity in KITTI's 16-bit PNG files
DISPARITIES = "a disparity map: a PFM file, or a PNG file of one channel of 16 bits as KITTI has it"
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I")


def read_views(
    left: str | Path, right: str | Path, annotated: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return both views of a pair, RGB, uint8 `(H, W, 3)`, and what was done to them.

    Views of more than 8 bits are scaled alike, since what is matched must look alike.

    Args:
        left: a file, as `right`.
        right: a file.
        annotated: width and height of the disparity map. A view that has this size only as it is stored is
            not turned.

    Raises:
        InputError: where there is no such image.
    """
    files = (left, right)
    views = [open_picture(file, annotated=annotated) for file in files]
    bits = max(view.bits for view in views)
    views = [
        view if view.bits == bits else open_picture(file, annotated=annotated, bits=bits)
        for file, view in zip(files, views, strict=True)
    ]
    changes = tuple(dict.fromkeys(change for view in views for change in view.changes))
    return np.asarray(views[0].image), np.asarray(views[1].image), changes


def read_disparity(path: str | Path) -> np.ndarray:
    """Disparities in pixels, float32 `(H, W)`, infinite where they are not known.

    From a PFM file, where what is no number, infinite or negative is not known, or from a 16-bit PNG file as
    KITTI has it, 256 a pixel and 0 where it is not known.

    Raises InputError for a file that cannot be read and one in which no disparity is known.
    """
    path = Path(path)
    values = read_pfm(path) if path.suffix.lower() == ".pfm" else _read_png(path)
    known = np.isfinite(values) & (values >= 0)
    if not known.any():
        raise InputError(f"{path}: no disparity is known; leave the pair out, or give its disparities")
    return np.where(known, values, np.float32(np.inf))


def _read_png(path: Path) -> np.ndarray:
    values = read_channel(path, SIXTEEN_BIT, DISPARITIES)
    return np.where(values > 0, values.astype(np.float32) / KITTI_SCALE, np.float32(np.inf))
