"""One image or disparity map from a file. A disparity that is not known is infinite."""

from pathlib import Path

import numpy as np
from PIL import Image

from attention.errors import InputError
from automl.data.images.formats import FORMATS
from automl.data.images.picture import Picture, read_picture
from automl.data.stereo.pfm import read_pfm

KITTI_SCALE = 256.0  # a pixel of disparity in KITTI's 16-bit PNG files
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
    views = [_read(file, annotated) for file in files]
    bits = max(view.bits for view in views)
    views = [
        view if view.bits == bits else _read(file, annotated, bits)
        for file, view in zip(files, views, strict=True)
    ]
    changes = tuple(dict.fromkeys(change for view in views for change in view.changes))
    return np.asarray(views[0].image), np.asarray(views[1].image), changes


def _read(path: str | Path, annotated: tuple[int, int] | None, bits: int | None = None) -> Picture:
    try:
        return read_picture(path, annotated=annotated, bits=bits)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise errors of every kind
        raise InputError(f"{path} cannot be read as an image ({type(error).__name__}: {error})") from error


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
    try:
        with Image.open(path, formats=FORMATS) as image:
            mode, values = image.mode, np.asarray(image)
    except FileNotFoundError:
        raise InputError(f"there is no disparity map {path}") from None
    except Exception as error:
        raise InputError(f"{path} cannot be read as a disparity map ({error})") from error
    if mode not in SIXTEEN_BIT:
        raise InputError(
            f"{path} must be a PFM file, or a PNG file of one channel of 16 bits as KITTI has it; "
            f"got one of Pillow's mode {mode}"
        )
    return np.where(values > 0, values.astype(np.float32) / KITTI_SCALE, np.float32(np.inf))
