"""Read one image or disparity map. An unknown disparity is infinite."""

from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.data.pictures.picture import open_picture, read_channel
from automl.tasks.stereo.data.pfm import read_pfm

KITTI_SCALE = 256.0  # per pixel of disparity in KITTI's 16-bit PNG files
DISPARITIES = "a disparity map: a PFM file, or a 16-bit PNG file of one channel as in KITTI"
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I")


def read_views(
    left: str | Path, right: str | Path, annotated: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return both views of a pair, RGB, uint8 `(H, W, 3)`, and the changes to them.

    Views of more than 8 bits are scaled by the same bits, since matching pixels must look alike.

    Args:
        left: the file of the left view.
        right: the file of the right view.
        annotated: width and height of the disparity map. A view that has this size only as it is stored is
            not turned by EXIF.

    Raises:
        InputError: A file does not exist or is no image.
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
    """Return disparities in pixels, float32 `(H, W)`, infinite where they are unknown.

    A PFM file has NaN, infinite or negative values there. A 16-bit PNG file of KITTI has 256 per pixel of
    disparity, and 0 if it is unknown.

    Raises InputError for a file that cannot be read or has no known disparity.
    """
    path = Path(path)
    values = read_pfm(path) if path.suffix.lower() == ".pfm" else _read_png(path)
    known = np.isfinite(values) & (values >= 0)
    if not known.any():
        raise InputError(f"{path} has no known disparity; remove the pair, or add its disparities")
    return np.where(known, values, np.float32(np.inf))


def _read_png(path: Path) -> np.ndarray:
    values = read_channel(path, SIXTEEN_BIT, DISPARITIES)
    return np.where(values > 0, values.astype(np.float32) / KITTI_SCALE, np.float32(np.inf))
