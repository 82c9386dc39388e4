from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from automl.data.images import cache_side, decode
from automl.data.images.formats import SUFFIXES


def stored(picture: Image.Image, kind: str, **options: object) -> BytesIO:
    file = BytesIO()
    picture.save(file, kind, **options)
    file.seek(0)
    return file


@pytest.mark.parametrize(("size", "side"), [(32, 40), (64, 80), (128, 160), (224, 280), (1, 8)])
def test_cache_side(size: int, side: int) -> None:
    assert cache_side(size) == side


def test_whole_image_is_squashed_and_its_aspect_kept() -> None:
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
    """A light grey picture is light grey whatever it is stored as."""
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


@pytest.mark.parametrize("kind", ["TIFF", "PPM"])
def test_16_bits_in_32_are_scaled_as_16(kind: str) -> None:
    """Pillow opens a 16-bit PGM so, and older ones a 16-bit PNG."""
    values = np.tile(np.array([0, 255, 32768, 65535], np.int32), (4, 1))
    picture = Image.fromarray(values)
    assert picture.mode == "I"
    square, _ = decode(stored(picture, kind), 4)
    assert (square[..., 0] == [0, 0, 128, 255]).all()


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


def test_arrays_are_taken_as_they_are() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    square, aspect = decode(grey, 8)
    assert (square == grey[..., None]).all()
    assert aspect == 1.0


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_honoured(orientation: int) -> None:
    """A picture stored in any of the eight ways comes out as it was seen."""
    seen = np.zeros((40, 80, 3), np.uint8)
    seen[:20, :40] = 255  # the upper left quarter
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    picture = Image.fromarray(seen)
    if orientation in back:
        picture = picture.transpose(back[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    square, aspect = decode(stored(picture, "JPEG", quality=95, exif=exif), 16)
    assert aspect == 2.0
    assert square[2, 2].min() > 200
    assert max(square[2, 13].max(), square[13, 2].max(), square[13, 13].max()) < 50


def test_large_jpeg_is_near_its_exact_resize(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 601).astype(np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:401, None], ramp[None, :], ramp[None, ::-1]), -1)
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=95)
    square, aspect = decode(tmp_path / "a.jpg", 40)
    exact = np.asarray(Image.fromarray(pixels).resize((40, 40), Image.Resampling.BILINEAR))
    assert aspect == 601 / 401  # not that of the smaller size it was decoded at
    assert np.abs(square.astype(int) - exact).mean() < 2


@pytest.mark.parametrize("kind", ["EPS", "ICO", "TGA"])
def test_what_no_folder_of_images_has_is_not_opened(kind: str, tmp_path: Path) -> None:
    """Whatever it is called: Pillow hands EPS to Ghostscript."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", format=kind)
    with pytest.raises(UnidentifiedImageError):
        decode(tmp_path / "a.jpg", 8)


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_kind_of_file_is_read(suffix: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / f"a{suffix}")
    pixels, _ = decode(tmp_path / f"a{suffix}", 8)
    assert (pixels == 255).all()
