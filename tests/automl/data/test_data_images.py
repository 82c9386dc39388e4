import struct
import zlib
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, UnidentifiedImageError
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms import v2

from automl.data.augment import (
    EQUALIZE,
    IDENTITY,
    POSTERIZE,
    apply_policy,
    centre_crop,
    crop_boxes,
    draw_boxes,
    draw_operations,
    erase_boxes,
    normalise,
)
from automl.data.pictures import SUFFIXES, TURNED, decode, read_picture, read_size
from automl.tasks.image_classification.data.feed import apply_cutmix
from backbones import IMAGENET


def stored(picture: Image.Image, kind: str, **options: object) -> BytesIO:
    file = BytesIO()
    picture.save(file, kind, **options)
    file.seek(0)
    return file


def test_images_become_squares_of_8_bits() -> None:
    pixels = np.zeros((50, 100, 3), np.uint8)
    pixels[:, :50] = 255
    square, aspect = decode(stored(Image.fromarray(pixels), "PNG"), 20)
    assert square.shape == (20, 20, 3)
    assert square.dtype == np.uint8
    assert aspect == 2.0
    assert (square[:, :8] == 255).all()
    assert (square[:, 12:] == 0).all()
    square, _ = decode(stored(Image.new("RGBA", (9, 9), (0, 0, 0, 0)), "PNG"), 4)
    assert (square == 255).all()
    palette = Image.new("P", (9, 9), 3)
    square, _ = decode(stored(palette, "GIF", transparency=3), 4)
    assert (square == 255).all()
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    square, aspect = decode(grey, 8)
    assert (square == grey[..., None]).all()
    assert aspect == 1.0
    values = np.arange(0, 4096, 64, dtype=np.uint16).reshape(8, 8)
    square, _ = decode(tiff_of_12_bits(values), 8)
    np.testing.assert_array_equal(square[..., 0], values >> 4)


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


@pytest.mark.parametrize("kind", ["TIFF", "PPM"])
def test_16_bits_in_32_are_scaled_as_16(kind: str) -> None:
    """Pillow opens a 16-bit PGM with 32 bits, and so do older versions with a 16-bit PNG."""
    values = np.tile(np.array([0, 255, 32768, 65535], np.int32), (4, 1))
    picture = Image.fromarray(values)
    assert picture.mode == "I"
    square, _ = decode(stored(picture, kind), 4)
    assert (square[..., 0] == [0, 0, 128, 255]).all()


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


def tiff_of_12_bits(values: np.ndarray) -> BytesIO:
    """Return a TIFF of `(H, W)` in which three bytes hold two pixels."""
    pairs = values.reshape(-1, 2).astype(np.uint32)
    packed = (pairs[:, 0] << 12 | pairs[:, 1]).astype(">u4").tobytes()
    content = b"".join(packed[i + 1 : i + 4] for i in range(0, len(packed), 4))
    height, width = values.shape
    tags = [(256, width), (257, height), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, height)]
    tags += [(279, len(content))]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return BytesIO(
        struct.pack("<2sHI", b"II", 42, 8 + len(content))
        + content
        + struct.pack("<H", len(tags))
        + entries
        + bytes(4)
    )


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


def test_unreadable_dark_16_bit_colours_are_refused() -> None:
    """Pillow keeps only the upper 8 bits of such a TIFF."""
    values = np.full((4, 4, 3), 200, "<u2").tobytes()
    tags = [
        (256, 4),
        (257, 4),
        (258, 16),
        (259, 1),
        (262, 2),
        (273, 8),
        (277, 3),
        (278, 4),
        (279, len(values)),
    ]
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags)
    head = struct.pack("<2sHI", b"II", 42, 8 + len(values))
    with pytest.raises(ValueError, match=r"16-bit colours .* would be black"):
        decode(BytesIO(head + values + struct.pack("<H", len(tags)) + entries + bytes(4)), 8)


@pytest.mark.parametrize(("low", "high"), [(0, 65536), (-1, 200), (-(2**31), 2**31 - 1)])
def test_32_bits_have_no_agreed_range(low: int, high: int) -> None:
    values = np.array([[low, 1], [2, high]], np.int32)
    message = f"32-bit integers with values from {low} to {high} has no agreed range"
    with pytest.raises(ValueError, match=message):
        decode(stored(Image.fromarray(values), "TIFF"), 8)


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


@pytest.mark.parametrize(
    ("kind", "count", "value", "turned"),
    [
        (1, 1, b"\6\0\0\0", True),  # BYTE
        (2, 2, b"6\0\0\0", True),  # ASCII
        (4, 1, b"\6\0\0\0", True),  # LONG
        (11, 1, struct.pack("<f", 6), True),
        (11, 1, struct.pack("<f", float("nan")), False),
        (2, 3, b"up\0\0", False),
        (3, 1, b"\x63\0\0\0", False),
        (5, 1, b"\xff\xff\0\0", False),  # RATIONAL, beyond the end of the block
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_exif_orientation_of_any_type_is_read(kind: int, count: int, value: bytes, turned: bool) -> None:
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHI", 8, 1, 0x112, kind, count) + value + bytes(4)
    _, aspect = decode(stored(Image.new("RGB", (80, 40)), "JPEG", exif=exif), 16)
    assert aspect == (0.5 if turned else 2.0)


def test_photographs_that_are_large_or_of_other_formats(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("suffix", sorted(SUFFIXES))
def test_every_suffix_is_read(suffix: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / f"a{suffix}")
    pixels, _ = decode(tmp_path / f"a{suffix}", 8)
    assert (pixels == 255).all()


SIDE = 64


def pictures(count: int, side: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=generator)


def ramps(count: int) -> Tensor:
    """Return images whose red grows to the right and green downwards, by 4 per pixel, so that a crop shows
    its position.
    """
    grow = torch.arange(SIDE, dtype=torch.uint8) * 4
    picture = torch.stack(
        [grow.expand(SIDE, SIDE), grow.view(-1, 1).expand(SIDE, SIDE), grow.expand(SIDE, SIDE)]
    )
    return picture.permute(1, 2, 0).expand(count, SIDE, SIDE, 3).contiguous()


def bytes_of(normalised: Tensor) -> Tensor:
    mean, std = (torch.tensor(v).view(3, 1, 1) * 255 for v in IMAGENET)
    return normalised * std + mean


def random_crop(
    images: Tensor, size: int = 8, *, scale: float = 0.35, flip: bool = False, seed: int = 0
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    boxes = draw_boxes(torch.ones(len(images)), scale=scale, flip=flip, generator=generator)
    return crop_boxes(images, boxes, size)


def test_normalised_and_centred_images() -> None:
    images = pictures(2)
    expected = reference.normalize(images.permute(0, 3, 1, 2) / 255, *map(list, IMAGENET))
    normalised = normalise(images)
    torch.testing.assert_close(normalised, expected, rtol=0, atol=1e-5)
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    images = pictures(3)
    assert torch.equal(centre_crop(images, torch.ones(3), 16), images)
    # In a batch with other shapes it is resampled, with the same result.
    assert torch.equal(centre_crop(images, torch.tensor([1.0, 2.0, 1.0]), 16)[::2], images[::2])
    images = torch.randn(6, 3, 20, 20)
    assert torch.equal(erase_boxes(images, SEEDS, 0.0), images)


@pytest.mark.parametrize("size", [(200, 100), (100, 200), (150, 100), (120, 120)])
def test_centre_crop_restores_the_aspect_ratio(size: tuple[int, int]) -> None:
    x, y, short = size[0] // 2, size[1] // 2, min(size)
    picture = Image.new("L", size, "black")
    ImageDraw.Draw(picture).circle((x, y), short * 0.4, fill="white")
    squashed, aspect = decode(np.asarray(picture), 80)
    centre = centre_crop(torch.from_numpy(squashed)[None], torch.tensor([aspect]), 64)[0, :, :, 0].float()
    half = short // 2
    square = picture.crop((x - half, y - half, x + half, y + half)).resize(
        (64, 64), Image.Resampling.BILINEAR
    )
    assert (centre - torch.from_numpy(np.array(square))).abs().mean() < 4
    inside = centre > 127
    across, down = inside.any(0).sum().item(), inside.any(1).sum().item()
    assert abs(across - down) <= 1
    assert across == pytest.approx(0.8 * 64, abs=2)


def test_crops_are_functions_of_the_generator() -> None:
    images = pictures(4)
    assert torch.equal(random_crop(images), random_crop(images))
    assert not torch.equal(random_crop(images), random_crop(images, seed=1))
    assert random_crop(images).is_contiguous(memory_format=torch.channels_last)
    assert random_crop(images).dtype == torch.float32
    crops = random_crop(ramps(8)).flatten(1)
    assert len(torch.unique(crops, dim=0)) == 8
    images = pictures(64)
    plain, flipped = random_crop(images, scale=1), random_crop(images, scale=1, flip=True)
    mirrored = 0
    for before, after in zip(plain, flipped, strict=True):
        if not torch.equal(before, after):
            torch.testing.assert_close(after, before.flip(-1), rtol=0, atol=1e-3)
            mirrored += 1
    assert 20 <= mirrored <= 44


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.1, 1))
def test_boxes_of_squares(seed: int, scale: float) -> None:
    size = 8
    red, green, _ = bytes_of(random_crop(ramps(32), size, scale=scale, seed=seed)).unbind(1)
    # The centres of the first and last pixel are 7/8 of the box apart. Four grey values are a pixel.
    width = (red[:, 0, -1] - red[:, 0, 0]) / 4 / SIDE * size / (size - 1)
    height = (green[:, -1, 0] - green[:, 0, 0]) / 4 / SIDE * size / (size - 1)
    assert ((width > 0) & (width < 1.02)).all()
    assert ((height > 0) & (height < 1.02)).all()
    assert ((width / height > 0.73) & (width / height < 1.37)).all()
    assert (width * height > scale * 0.75 * 0.96).all()  # A box that reaches over the edge is cut.


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    aspect=st.floats(0.2, 5),
    low=st.integers(0, 120),
    high=st.integers(130, 255),
    size=st.integers(1, 24),
)
def test_crops_stay_in_the_range_of_the_image(
    seed: int, aspect: float, low: int, high: int, size: int
) -> None:
    images = pictures(3).clamp(low, high)
    aspects = torch.tensor([aspect, 1.0, 1 / aspect])
    generator = torch.Generator().manual_seed(seed)
    boxes = draw_boxes(aspects, scale=0.35, flip=True, generator=generator)
    crops = bytes_of(crop_boxes(images, boxes, size))
    assert crops.shape == (3, 3, size, size)
    assert crops.min() > low - 0.01
    assert crops.max() < high + 0.01
    centre = centre_crop(images, aspects, size)
    assert centre.shape == (3, size, size, 3)
    assert centre.min() >= low
    assert centre.max() <= high


RAW = torch.randint(0, 256, (6, 20, 20, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)


SEEDS = torch.arange(6)


Augment = Callable[[Tensor, Tensor], Tensor]
CASES: dict[str, tuple[Augment, Tensor]] = {
    "trivial": (partial(apply_policy, "trivial"), RAW),
    "rand": (partial(apply_policy, "rand"), RAW),
    "erasing": (partial(erase_boxes, probability=1.0), torch.randn(6, 3, 20, 20)),
}


@pytest.mark.parametrize(("policy", "images"), CASES.values(), ids=CASES)
def test_images_are_changed_independently(policy: Augment, images: Tensor) -> None:
    before, state = images.clone(), torch.get_rng_state()
    changed = policy(images, SEEDS)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert (changed.shape, changed.dtype) == (images.shape, images.dtype)
    assert not torch.equal(changed, images)
    assert torch.equal(policy(images, SEEDS), changed)
    order = torch.tensor([4, 2, 0])
    assert torch.equal(policy(images[order], SEEDS[order]), changed[order]), (
        "the other images of the batch have no effect"
    )
    same = policy(images[:1].expand(6, *images.shape[1:]), SEEDS)
    assert len({tuple(image.flatten().tolist()) for image in same}) > 1


def transform_each(transform: Augment, images: Tensor) -> Tensor:
    """Transform each image by torchvision, after seeding torch with its number."""
    changed = []
    with torch.random.fork_rng(devices=[]):
        for seed, image in enumerate(images):
            torch.manual_seed(seed)
            changed.append(transform(image))
    return torch.stack(changed)


@pytest.mark.parametrize("side", [24, 25])
@pytest.mark.parametrize("policy", ["trivial", "rand"])
def test_policies_equal_those_of_torchvision(policy: str, side: int) -> None:
    """Compare all operations with the public classes, which draw the same numbers."""
    images = pictures(300, side)
    images[::9] //= 32
    images[::45] = images[::45, :1, :1]  # of one colour
    seeds = torch.arange(len(images))
    transform = v2.TrivialAugmentWide() if policy == "trivial" else v2.RandAugment()
    expected = transform_each(transform, images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    distance = (apply_policy(policy, images, seeds).int() - expected.int()).abs().flatten(1)
    operations, _ = draw_operations(policy, seeds, side)
    assert set(operations.flat) == set(range(EQUALIZE + 1))
    in_integers = torch.from_numpy(((operations == IDENTITY) | (operations >= POSTERIZE)).all(0))
    assert distance[in_integers].max() == 0
    assert (distance > 1).float().mean() < 1e-4, "rounding may choose another pixel, or the next level"


def test_erased_boxes_equal_those_of_torchvision() -> None:
    images = torch.randn(200, 3, 20, 30)
    for probability in (0.25, 1.0):
        expected = transform_each(v2.RandomErasing(probability), images)
        assert torch.equal(erase_boxes(images, torch.arange(200), probability), expected)


class Calls(TorchDispatchMode):
    """Count operator calls."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("policy", "most"), [("trivial", 60), ("rand", 120)])
def test_a_batch_takes_few_operator_calls(policy: str, most: int) -> None:
    images, seeds = pictures(64), torch.arange(64)
    apply_policy(policy, images, seeds)  # makes the tables
    with Calls() as calls:
        apply_policy(policy, images, seeds)
    assert calls.count <= most


@pytest.mark.parametrize("at", [(0.5, 0.5), (0.0, 1.0), (0.3, 0.9)], ids=str)
def test_cutmix_inserts_a_box_of_another_image(at: tuple[float, float]) -> None:
    """The area of the box is the fraction of the other image. Less of it remains at the edges."""
    x, y = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 40, 40), torch.arange(4)
    other, fraction = torch.tensor([1, 2, 3, 0]), torch.tensor([0.75, 0.5, 1.0, 0.91])
    mixed, own, others, kept = apply_cutmix(x, y, other, fraction, torch.tensor([at] * 4))
    assert own.tolist() == [0, 1, 2, 3]
    assert others.tolist() == other.tolist()
    for image, i, j, left in zip(mixed, own, others, kept, strict=True):
        assert set(image.unique().tolist()) <= {float(i), float(j)}
        assert (image == i).float().mean() == pytest.approx(float(left), abs=1e-6)
        rows = (image[0] == j).any(1).nonzero().flatten()
        assert len(rows) == 0 or (image[0, rows[0] : rows[-1] + 1] == j).any(0).sum() > 0
    if at == (0.5, 0.5):
        assert kept.tolist() == pytest.approx(fraction.tolist(), abs=0.03)
    else:
        assert (kept >= fraction - 0.03).all()
