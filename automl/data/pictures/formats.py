"""Recognise image files by their suffix and their content."""

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, features

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
    return suffix in SUFFIXES or (suffix not in UNREAD and _is_recognised(file, suffix))


def is_picture(file: Path) -> bool:
    """Return whether a file is an image, including kinds that are not read."""
    return get_suffix(file.name) in UNREAD or is_image(file)


def is_heif(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is an HEIC or HEIF file."""
    return head[4:8] == b"ftyp" and head[8:12] in _BRANDS


def _is_recognised(file: Path, suffix: str) -> bool:
    try:
        with Image.open(file, formats=_CERTAIN if suffix else FORMATS):
            return True
    except MemoryError:
        raise
    except Exception:  # Pillow raises nearly any error for a file that is no image.
        return False
