"""One image, whatever it is stored as, to a square of RGB pixels.

The whole image is squashed to a square and its aspect (width / height) is kept beside it. Rows of one
size can be memory-mapped and gathered by index, and nothing is lost at the borders: a crop taken later,
on the device, picks its rectangle in the image's true geometry by way of the aspect. A centre crop at
this point would throw pixels away for good, and padding would store and move pixels that are never used.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, features

# By Pillow's names. Of its others, some start programs (EPS calls Ghostscript), and the name of a file says
# nothing.
_SUFFIXES = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".ppm", ".pgm", ".pbm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
if features.check("avif"):
    _SUFFIXES["AVIF"] = (".avif",)
if find_spec("pillow_heif"):  # a plug-in that one may install
    import_module("pillow_heif").register_heif_opener()
    _SUFFIXES["HEIF"] = (".heic", ".heif")
FORMATS = tuple(_SUFFIXES)
SUFFIXES = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)


def cache_side(size: int) -> int:
    """The side in pixels at which images are cached for training at `size` pixels.

    A quarter more, up to a multiple of 8: a random crop that keeps most of the image is then still
    scaled down to `size`, not blown up from fewer pixels.
    """
    return -(-size * 5 // 32) * 8


def decode(image: str | Path | BinaryIO | np.ndarray, side: int) -> tuple[np.ndarray, float]:
    """Returns the whole image as uint8 (side, side, 3), and its aspect, width / height.

    `image` is a path, an open file or a uint8 array (height, width) or (height, width, 3). Of an
    animation the first picture counts. Transparent parts become white, and integers of more than 8 bits
    are taken for 16. Raises ValueError for pixels without an agreed range, and whatever Pillow raises
    (OSError, SyntaxError, ValueError and more) for a file that it cannot decode.
    """
    if isinstance(image, np.ndarray):
        return _squash(Image.fromarray(image), side)
    with Image.open(image, formats=FORMATS) as picture:
        return _squash(picture, side)


def _squash(picture: Image.Image, side: int) -> tuple[np.ndarray, float]:
    width, height = picture.size
    # A JPEG can be decoded at 1/2, 1/4 or 1/8, never below `side`: several times faster, and its
    # block averages are what the resize would have to compute. Other formats ignore this.
    picture.draft(None, (side, side))
    if picture.getexif().get(ExifTags.Base.Orientation, 1) >= 5:  # stored lying on its side
        width, height = height, width
    upright = ImageOps.exif_transpose(picture)
    # Pillow widens BILINEAR when it scales down, so it antialiases, and interpolates when it scales up.
    square = rgb(upright).resize((side, side), Image.Resampling.BILINEAR)
    return np.asarray(square), width / height


def rgb(picture: Image.Image) -> Image.Image:
    if picture.mode == "F":
        raise ValueError("an image of floating-point pixels has no agreed range; store it as integers")
    if picture.mode.startswith("I"):  # 16 bits, in some formats held in 32: Pillow would cut off at 255
        values = np.asarray(picture)
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > 65535:
            raise ValueError(
                f"an image of 32-bit integers with values from {low} to {high} has no agreed range; store it "
                f"with 8 or 16 bits"
            )
        picture = Image.fromarray((values >> 8).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")
