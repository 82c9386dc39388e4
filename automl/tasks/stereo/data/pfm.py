"""Portable float maps: a header in text, then float32 values, the lowest row first.

Source: P. Debevec, Portable Float Map; used by Scene Flow and Middlebury. The sign of the scale gives the
byte order, negative for little endian. Its size is ignored, as both data sets expect.
"""

import re
from pathlib import Path

import numpy as np

from automl.base.errors import InputError

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
    first: np.ndarray = values.reshape(height, width, channels)[::-1, :, 0].astype(np.float32)
    return first


def write_pfm(path: str | Path, values: np.ndarray) -> None:
    """Write values `(H, W)` as little endian float32."""
    height, width = values.shape
    flipped = np.ascontiguousarray(values[::-1], "<f4")
    Path(path).write_bytes(f"Pf\n{width} {height}\n-1.0\n".encode() + flipped.tobytes())
