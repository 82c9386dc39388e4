"""Recognise image files, and read them as every reader does: upright, RGB, 8 bits. Decode them to squares.

Orientation: cameras store a photograph as the sensor is oriented, and write the direction into the EXIF tag
Orientation. The image is turned upright here. Some programs write the tag with another type than SHORT. Every
value that means a number from 1 to 8 is accepted. A damaged EXIF block is ignored.

Depth: an image of more than 8 bits is scaled by the bits that its largest value needs: 8, 10, 12, 14 or 16.
Files rarely record how many of their 16 bits are used, and a 12-bit image would be nearly black if it were
taken for a 16-bit one. The decision depends on the image alone, so that a deployed model reads a file as
training did.

Squares: the whole image is resized. Its aspect ratio (width / height) is stored beside it. Rows of one size
can be memory-mapped and gathered by index. A crop on the device uses the aspect ratio to select a rectangle
in the image's true geometry. A centre crop at this point would lose pixels, and padding would store and move
pixels that are never used.
"""

import os
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError, features

from automl.base.errors import InputError
from automl.base.text import is_special

# By Pillow's names. Other formats of Pillow are not used: some start programs (EPS calls Ghostscript),
# whatever the file is called.
_SUFFIXES = {
    "BMP": (".bmp",),
    "DIB": (".dib",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
if features.check("jpg_2000"):
    _SUFFIXES["JPEG2000"] = (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx")
if features.check("avif"):
    _SUFFIXES["AVIF"] = (".avif", ".avifs")
HEIF = (".heic", ".heif", ".hif")
if find_spec("pillow_heif"):  # an optional plug-in
    import_module("pillow_heif").register_heif_opener()
    _SUFFIXES["HEIF"] = HEIF
FORMATS = tuple(_SUFFIXES)
SUFFIXES = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
# Formats that the first bytes identify. TIFF is not among them: cameras' raw files begin alike, and Pillow
# would read the preview in them.
_CERTAIN = tuple(name for name in FORMATS if name not in ("BMP", "DIB", "PPM", "TIFF"))

# Suffixes of pictures that are not read here.
_OTHERS = """
    .3fr .ai .arw .avif .avifs .cr2 .cr3 .cur .dcm .dds .dicom .djvu .dng .eps .exr .fits .hdr .heic
    .heif .hif .ico .icns .j2k .jls .jng .jp2 .jpx .jxl .jxr .nef .nrw .orf .pcx .pef .psd .raf .raw
    .rw2 .sr2 .srw .svg .svs .tga .wdp .wmf .x3f .xcf
"""
UNREAD = frozenset(_OTHERS.split()) - SUFFIXES
_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIF_HINT = "to read HEIC: pip install pillow-heif"


def get_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case."""
    return os.path.splitext(name)[1].lower()


def is_image(file: Path) -> bool:
    """Return whether a file is read as an image, by its suffix or else by its content."""
    suffix = get_suffix(file.name)
    return suffix in SUFFIXES or (
        suffix not in UNREAD and not is_special(file) and _is_recognised(file, suffix)
    )


def is_picture(file: Path) -> bool:
    """Return whether a file is an image, including kinds that are not read."""
    return get_suffix(file.name) in UNREAD or is_image(file)


def _is_recognised(file: Path, suffix: str) -> bool:
    try:
        with Image.open(file, formats=_CERTAIN if suffix else FORMATS):
            return True
    except MemoryError:
        raise
    except Exception:  # Pillow raises nearly any error for a file that is no image.
        return False


DEPTHS = (8, 10, 12, 14, 16)  # bits per channel that are distinguished
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # orientations in which width and height are exchanged
BACK = {6: 8, 8: 6}  # Every other turn is its own inverse.
TURNED = "turned upright by their EXIF orientation"
PRESUMED = "turned upright by EXIF (square, so it is unknown if the annotations are of the upright image)"
AS_STORED = "not turned upright, since their annotations have the size of the stored image"

SCALED = "of {bits} bits, scaled to 8"
TAKEN = "of 16 bits with values up to 255, read as 8 bits"


class Picture(NamedTuple):
    """An image as it is displayed.

    Attributes:
        image: the pixels, RGB.
        size: width and height before `at_least` made it smaller.
        bits: the bits per channel that its values were scaled from.
        changes: changes that were made while reading, as kinds of a `Tally`.
    """

    image: Image.Image
    size: tuple[int, int]
    bits: int
    changes: tuple[str, ...]


def read_picture(
    file: str | Path | BinaryIO,
    *,
    at_least: int | None = None,
    annotated: tuple[int, int] | None = None,
    bits: int | None = None,
) -> Picture:
    """Read an image file.

    Only the first frame of an animation is read. Transparent pixels become white.

    Args:
        file: a path or an open file.
        at_least: decode a JPEG at a smaller size, with at least this many pixels at either side.
        annotated: width and height according to annotations, which may be those of the stored image. An image
            that has this size only as it is stored is not turned.
        bits: the bits that values of more than 8 bits are scaled from; derived from the image if None.

    Raises:
        ValueError: The pixels have no agreed range, or the file is HEIC and the plug-in is missing.
        OSError, SyntaxError, ...: Pillow cannot decode the file.
    """
    with _open_image(file) as stored:
        # Test this before reading the tag: that may load a PNG, after which Pillow forgets its stored mode.
        is_deep_colour = stored.mode in ("RGB", "RGBA", "LA") and ";16" in str(getattr(stored, "tile", ""))
        orientation, size = read_orientation(stored), stored.size
        if at_least is not None:
            # A JPEG can be decoded at 1/2, 1/4 or 1/8. This is several times faster, and its block averages
            # are those that a resize would compute. Other formats ignore this.
            stored.draft(None, (at_least, at_least))
        stored.load()
        # Pillow swaps a TIFF's sides when it opens it, and turns its pixels when it loads it.
        pending = read_orientation(stored)
        size = size[::-1] if pending in SIDEWAYS else size
        change = describe_turn(orientation, size, annotated)
        changes = [] if change is None else [change]
        turn = TURNS.get(pending)
        if change == AS_STORED:
            turn = None if pending == orientation else TURNS.get(BACK.get(orientation, orientation))
            size = size[::-1] if orientation in SIDEWAYS else size
        values = _read_colours_of_16_bits(file, stored) if is_deep_colour else _read_greys_of_16_bits(stored)
        if values is None:
            image, bits = stored, 8
        else:
            image, bits = _scale_to_8_bits(values, bits)
            changes.append(SCALED.format(bits=bits) if bits > 8 else TAKEN)
        image = _to_rgb(image)
        return Picture(image if turn is None else image.transpose(turn), size, bits, tuple(changes))


def open_picture(file: str | Path, **options: Any) -> Picture:
    """Read an image file like `read_picture`. Raises InputError if it cannot be read."""
    try:
        return read_picture(file, **options)
    except FileNotFoundError:
        raise InputError(f"there is no image {file}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises nearly any error for a damaged file.
        raise InputError(f"{file} cannot be read as an image ({type(error).__name__}: {error})") from error


def read_channel(file: str | Path, modes: Collection[str], expected: str) -> np.ndarray:
    """Return the stored values of an image with one channel, `(H, W)`.

    Raises InputError if the file does not exist, cannot be read, or has none of Pillow's `modes`. The message
    calls the file `expected`.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            mode, values = image.mode, np.asarray(image)
    except FileNotFoundError:
        raise InputError(f"there is no file {file}, {expected}") from None
    except Exception as error:  # Pillow raises nearly any error for a damaged file.
        raise InputError(f"{file} cannot be read ({error}); it must be {expected}") from error
    if mode not in modes:
        raise InputError(f"{file} must be {expected}; got one of Pillow's mode {mode}")
    return values


def read_size(
    file: str | Path, annotated: tuple[int, int] | None = None
) -> tuple[tuple[int, int], str | None]:
    """Return an image's upright size, and its turn, without decoding. Raises like `read_picture`."""
    with _open_image(file) as stored:
        # Pillow would decode a whole PNG to look for EXIF data behind its pixels.
        orientation = 1 if stored.format == "PNG" and "exif" not in stored.info else read_orientation(stored)
        is_upright = stored.format == "TIFF" and isinstance(
            stored.getexif().get(ExifTags.Base.Orientation), int
        )
        size = stored.size[::-1] if orientation in SIDEWAYS and not is_upright else stored.size
        change = describe_turn(orientation, size, annotated)
        return (size[::-1] if change == AS_STORED else size), change


def read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8. Return 1 if it is missing or invalid."""
    try:
        value: Any = image.getexif().get(ExifTags.Base.Orientation, 1)
    except MemoryError:
        raise
    except Exception:  # Pillow raises errors of several kinds for a damaged block.
        return 1
    if isinstance(value, Sequence) and not isinstance(value, bytes | str):
        value = value[0] if value else 1
    if isinstance(value, bytes):  # the types BYTE and UNDEFINED
        value = value.strip(b"\0 ")
        value = value[0] if len(value) == 1 and value[0] < 9 else value.decode("ascii", "replace")
    try:
        number = int(value)  # also the types ASCII, LONG, RATIONAL and floating point
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return 1
    return number if number in TURNS else 1


def describe_turn(
    orientation: int, upright: tuple[int, int], annotated: tuple[int, int] | None
) -> str | None:
    """Return TURNED, PRESUMED or AS_STORED; None for an image that is stored upright."""
    if orientation not in TURNS:
        return None
    stored = upright[::-1] if orientation in SIDEWAYS else upright
    if annotated is None or annotated not in (upright, stored):
        return TURNED
    if upright == stored:
        return PRESUMED
    return TURNED if annotated == upright else AS_STORED


def _open_image(file: str | Path | BinaryIO) -> Image.Image:
    try:
        return Image.open(file, formats=FORMATS)
    except UnidentifiedImageError as error:
        head = _read_bytes(file, 12)
        if "HEIF" not in FORMATS and head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
            raise ValueError(f"an HEIC image; {HEIF_HINT}") from error
        raise


def _read_bytes(file: str | Path | BinaryIO, count: int = -1) -> bytes:
    """Return the first `count` bytes of a file, or all if it is negative."""
    if isinstance(file, str | Path):
        with open(file, "rb") as opened:
            return opened.read(count)
    file.seek(0)
    return file.read(count)


def _read_greys_of_16_bits(image: Image.Image) -> np.ndarray | None:
    """Return integers `(H, W)`; None for an image of 8 bits."""
    if image.mode == "F":
        raise ValueError("an image of floating-point pixels has no agreed range; store it as integers")
    if not image.mode.startswith("I"):
        return None
    values = np.asarray(image)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 65535:
        raise ValueError(
            f"an image of 32-bit integers with values from {low} to {high} has no agreed range; store it "
            f"with 8 or 16 bits"
        )
    return values


def _read_colours_of_16_bits(file: str | Path | BinaryIO, image: Image.Image) -> np.ndarray | None:
    """Return integers `(H, W, C)`; None if the upper 8 bits, which Pillow keeps, are enough."""
    if image.format == "PNG":
        import torch
        from torchvision.io import decode_png  # The import takes a second, and few files need it.

        values: np.ndarray = decode_png(
            torch.frombuffer(bytearray(_read_bytes(file)), dtype=torch.uint8)
        ).numpy()
        return values.transpose(1, 2, 0)
    if max(high for _, high in image.convert("RGB").getextrema()) < 16:  # type: ignore[misc]
        raise ValueError(
            "an image with 16-bit colours uses at most 12 bits and would be black; store it with 8 bits"
        )
    return None


def _scale_to_8_bits(values: np.ndarray, bits: int | None) -> tuple[Image.Image, int]:
    """Return an 8-bit image of integers `(H, W)` or `(H, W, C)`, and the bits. Opacity always has 16 bits."""
    channels = 1 if values.ndim == 2 else values.shape[2]
    colours = values if channels in (1, 3) else values[..., :-1]
    if bits is None:
        needed = int(colours.max()).bit_length()
        bits = next(depth for depth in DEPTHS if needed <= depth)
    scaled = colours.astype(np.uint16) >> (bits - 8)
    if channels in (2, 4):
        scaled = np.concatenate([scaled, values[..., -1:] >> 8], axis=2)
    return Image.fromarray(scaled.astype(np.uint8).squeeze()), bits


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def read_sizes(files: Sequence[Path]) -> list[tuple[int, int]]:
    """Return width and height in pixels of each image, upright, without those that cannot be read."""
    sizes = []
    for file in files:
        try:
            sizes.append(read_size(file)[0])
        except Exception:  # Pillow raises nearly any error for a damaged file, which is reported elsewhere.
            continue
    return sizes


def describe_sizes(sizes: Sequence[tuple[int, int]]) -> str:
    """Describe the widths and heights of images."""
    widths, heights = (sorted(side) for side in zip(*sizes, strict=True))
    middle = len(widths) // 2
    return (
        f"{widths[0]} to {widths[-1]} pixels wide (median {widths[middle]}), "
        f"{heights[0]} to {heights[-1]} high (median {heights[middle]})"
    )


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

    `image` is a path, an open file or a uint8 array `(H, W)` or `(H, W, 3)`. `changes` receives descriptions
    of changes other than scaling, see `Picture.changes`. Raises errors like `read_picture`.
    """
    if isinstance(image, np.ndarray):
        picture = Image.fromarray(image).convert("RGB")
        size = picture.size
    else:
        picture, size, _, new_changes = read_picture(image, at_least=side)
        if changes is not None:
            changes += new_changes
    # Pillow widens BILINEAR when it scales down, so it antialiases, and interpolates when it scales up.
    return np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)), size[0] / size[1]
