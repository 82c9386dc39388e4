"""Read one image or disparity map. An unknown disparity is infinite.

A portable float map (PFM) has a header in text, then float32 values, the lowest row first. The sign of the
scale gives the byte order, negative for little endian. Its size is ignored, as Scene Flow and Middlebury
expect. Source: P. Debevec, Portable Float Map.
"""

import re
from pathlib import Path

import numpy as np

from automl.base.errors import InputError
from automl.data.pictures import open_picture, read_channel

KITTI_SCALE = 256.0  # per pixel of disparity in KITTI's 16-bit PNG files
DISPARITIES = "a disparity map: a PFM file, or a 16-bit PNG file of one channel as in KITTI"
SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I")


def read_views(
    left: str | Path, right: str | Path, annotated: tuple[int, int] | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return both views of a pair, RGB, uint8 `(H, W, 3)`, and the changes to them.

    Views of more than 8 bits are scaled by the same bits, since matching pixels must look alike.

    `annotated` is the width and height of the disparity map. A view that has this size only as it is stored
    is not turned by EXIF.

    Raises InputError if a file does not exist or is no image.
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
    if path.suffix.lower() == ".pfm":
        values = read_pfm(path)
    else:
        values = read_channel(path, SIXTEEN_BIT, DISPARITIES).astype(np.float32) / KITTI_SCALE
        values[values == 0] = np.inf
    known = np.isfinite(values) & (values >= 0)
    if not known.any():
        raise InputError(f"{path} has no known disparity; remove the pair, or add its disparities")
    return np.where(known, values, np.float32(np.inf))


# Separators of headers differ between writers; one white space comes before the values.
HEADER = re.compile(rb"(P[Ff])\s+(\d+)\s+(\d+)\s+([-+]?[0-9.]+(?:[eE][-+]?\d+)?)\s")
LONGEST = 256  # bytes of a header


def read_pfm(path: str | Path) -> np.ndarray:
    """Return the first channel, float32 `(H, W)`, the top row first. Raises InputError for any other file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    header = HEADER.match(content[:LONGEST])
    if header is None:
        raise InputError(
            f"{path} must begin with the header of a PFM file: Pf or PF, width, height and scale; "
            f"got {content[:24]!r}"
        )
    channels = 3 if header[1] == b"PF" else 1
    width, height, scale = int(header[2]), int(header[3]), float(header[4])
    if not width * height or not scale:
        raise InputError(f"{path}: width, height and scale must not be 0; got {width}, {height}, {scale}")
    expected, received = width * height * channels * 4, len(content) - header.end()
    if expected != received:
        raise InputError(
            f"{path}: {width} x {height} values of {channels} channels are {expected} bytes; "
            f"got {received} after the header"
        )
    values = np.frombuffer(content, "<f4" if scale < 0 else ">f4", offset=header.end())
    return values.reshape(height, width, channels)[::-1, :, 0].astype(np.float32)


def write_pfm(path: str | Path, values: np.ndarray) -> None:
    """Write values `(H, W)` as little endian float32."""
    height, width = values.shape
    flipped = np.ascontiguousarray(values[::-1], "<f4")
    Path(path).write_bytes(f"Pf\n{width} {height}\n-1.0\n".encode() + flipped.tobytes())
