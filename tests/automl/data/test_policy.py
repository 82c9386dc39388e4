"""Test augmentation policies on batches: their effect, and that they depend only on the seeds."""

import pytest
import torch
from torch import Tensor

from automl.tasks.image_classification.data.feed import Augment, apply_cutmix, make_erasing, make_policy

RAW = torch.randint(0, 256, (6, 20, 20, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
SEEDS = torch.arange(6)
CASES: dict[str, tuple[Augment, Tensor]] = {
    "trivial": (make_policy("trivial"), RAW),
    "rand": (make_policy("rand"), RAW),
    "erasing": (make_erasing(1.0), torch.randn(6, 3, 20, 20)),
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


def test_no_image_is_erased_with_probability_0() -> None:
    images = torch.randn(6, 3, 20, 20)
    assert torch.equal(make_erasing(0.0)(images, SEEDS), images)


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
