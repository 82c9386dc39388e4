import numpy as np
import pytest
import torch
import torchvision.transforms.functional as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from torch import Tensor

from automl.data.augment import centre_crop, crop_boxes, draw_boxes, normalise
from automl.data.pictures import decode
from backbones import IMAGENET

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


def test_normalise_matches_torchvision_in_channels_last() -> None:
    images = pictures(2)
    expected = reference.normalize(images.permute(0, 3, 1, 2) / 255, *map(list, IMAGENET))
    normalised = normalise(images)
    torch.testing.assert_close(normalised, expected, rtol=0, atol=1e-5)
    assert normalised.is_contiguous(memory_format=torch.channels_last)


def test_centre_crop_of_a_square_at_its_size_is_the_image() -> None:
    images = pictures(3)
    assert torch.equal(centre_crop(images, torch.ones(3), 16), images)
    # In a batch with other shapes it is resampled, with the same result.
    assert torch.equal(centre_crop(images, torch.tensor([1.0, 2.0, 1.0]), 16)[::2], images[::2])


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


def test_random_crop_is_a_function_of_the_generator() -> None:
    images = pictures(4)
    assert torch.equal(random_crop(images), random_crop(images))
    assert not torch.equal(random_crop(images), random_crop(images, seed=1))
    assert random_crop(images).is_contiguous(memory_format=torch.channels_last)
    assert random_crop(images).dtype == torch.float32


def test_images_are_cropped_independently() -> None:
    crops = random_crop(ramps(8)).flatten(1)
    assert len(torch.unique(crops, dim=0)) == 8


def test_flip_mirrors_some_images_and_changes_nothing_else() -> None:
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
