import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from automl.data.pictures import SUFFIXES, TURNED, decode, read_picture, read_size
from automl.tasks.image_classification.data import cache_side


def stored(picture: Image.Image, kind: str, **options: object) -> BytesIO:
    file = BytesIO()
    picture.save(file, kind, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize(("size", "side"), [(32, 40), (64, 80), (128, 160), (224, 280), (1, 8)])
def test_cache_side(size: int, side: int) -> None:
    assert cache_side(size) == side


def test_whole_image_is_resized_to_a_square_with_its_aspect() -> None:
    pixels = np.zeros((50, 100, 3), np.uint8)
    pixels[:, :50] = 255
    square, aspect = decode(stored(Image.fromarray(pixels), "PNG"), 20)
    assert square.shape == (20, 20, 3)
    assert square.dtype == np.uint8
    assert aspect == 2.0
    assert (square[:, :8] == 255).all()
    assert (square[:, 12:] == 0).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "I;16", "LA", "RGBA"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    """A light grey picture stays light grey in every mode."""
    if mode == "I;16":
        picture = Image.fromarray(np.full((9, 9), 204 * 257, np.uint16))
    elif mode == "1":
        picture = Image.new("1", (9, 9), 1)
    elif mode == "P":
        picture = Image.new("P", (9, 9), 7)
        picture.putpalette([0] * 21 + [204] * 3)
    else:
        picture = Image.new("RGB", (9, 9), (204, 204, 204)).convert(mode)
    assert picture.mode == mode
    square, _ = decode(stored(picture, "TIFF" if mode == "CMYK" else "PNG"), 8)
    expected = 255 if mode == "1" else 204
    assert np.abs(square.astype(int) - expected).max() <= 1


def png_of_16_bits(values: np.ndarray) -> BytesIO:
    """Return a PNG of `(H, W, C)`: grey, grey with opacity, RGB or RGBA. Pillow can write only grey."""
    height, width, channels = values.shape
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return BytesIO(b"\x89PNG\r\n\x1a\n" + chunks)


@pytest.mark.parametrize(("bits", "largest"), [(8, 200), (10, 1000), (12, 4000), (14, 16000), (16, 65000)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_no_image_of_16_bits_becomes_black(bits: int, largest: int, channels: int) -> None:
    """Images use part of their range. Opacity uses all of it."""
    values = np.linspace(0, largest, 64).round().astype(np.uint16).reshape(8, 8, 1).repeat(channels, 2)
    if channels in (2, 4):
        values[..., -1] = 65535
    picture = read_picture(png_of_16_bits(values))
    assert picture.bits == bits
    np.testing.assert_array_equal(np.asarray(picture.image), values[..., :1].repeat(3, 2) >> (bits - 8))
    assert str(16 if bits == 8 else bits) in picture.changes[0]


@pytest.mark.parametrize(("low", "high"), [(0, 65536), (-1, 200), (-(2**31), 2**31 - 1)])
def test_32_bits_have_no_agreed_range(low: int, high: int) -> None:
    values = np.array([[low, 1], [2, high]], np.int32)
    with pytest.raises(
        ValueError, match=f"32-bit integers with values from {low} to {high} has no agreed range"
    ):
        decode(stored(Image.fromarray(values), "TIFF"), 8)


def test_transparent_becomes_white() -> None:
    square, _ = decode(stored(Image.new("RGBA", (9, 9), (0, 0, 0, 0)), "PNG"), 4)
    assert (square == 255).all()
    palette = Image.new("P", (9, 9), 3)
    square, _ = decode(stored(palette, "GIF", transparency=3), 4)
    assert (square == 255).all()


def test_arrays_are_decoded_unchanged() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    square, aspect = decode(grey, 8)
    assert (square == grey[..., None]).all()
    assert aspect == 1.0


BACK = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    """A picture that is stored in any orientation is decoded upright."""
    seen = np.zeros((40, 80, 3), np.uint8)
    seen[:20, :40] = 255  # the upper left quarter
    picture = Image.fromarray(seen)
    if orientation in BACK:
        picture = picture.transpose(BACK[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = stored(picture, kind, exif=exif)
    assert read_size(file) == ((80, 40), TURNED if orientation > 1 else None)
    square, aspect = decode(file, 16)
    assert aspect == 2.0
    assert square[2, 2].min() > 200
    assert max(square[2, 13].max(), square[13, 2].max(), square[13, 13].max()) < 50
    file.seek(0)
    kept = read_picture(file, annotated=picture.size)  # The annotations have the stored size.
    if orientation >= 5:
        assert np.abs(np.asarray(kept.image).astype(int) - np.asarray(picture)).max() < 50


def test_large_jpeg_is_near_its_exact_resize(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 601).astype(np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:401, None], ramp[None, :], ramp[None, ::-1]), -1)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    square, aspect = decode(tmp_path / "a.jpg", 40)
    exact = np.asarray(Image.fromarray(pixels).resize((40, 40), Image.Resampling.BILINEAR))
    assert aspect == 601 / 401  # that of the original, not of the smaller size that was decoded
    assert np.abs(square.astype(int) - exact).mean() < 2


@pytest.mark.parametrize("kind", ["EPS", "ICO", "TGA"])
def test_unsupported_formats_are_not_opened(kind: str, tmp_path: Path) -> None:
    """The suffix does not matter: Pillow would pass EPS to Ghostscript."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", format=kind)
    with pytest.raises(UnidentifiedImageError):
        decode(tmp_path / "a.jpg", 8)


def test_heic_image_names_the_plug_in() -> None:
    """The suffix does not matter: phones also use .jpg."""
    if ".heic" in SUFFIXES:
        pytest.skip("pillow-heif is installed")
    with pytest.raises(ValueError, match="pip install pillow-heif"):
        decode(BytesIO(b"\0\0\0\x18ftypheic" + bytes(100)), 8)


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_suffix_is_read(suffix: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / f"a{suffix}")
    pixels, _ = decode(tmp_path / f"a{suffix}", 8)
    assert (pixels == 255).all()
