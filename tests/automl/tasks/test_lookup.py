"""The space `lookup`: its pictures, its model, and what its free answers leave to a search."""

from functools import cache

import numpy as np
import torch
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock

from automl.data.augment import draw_boxes
from automl.tasks.image_classification.data import lookup
from automl.tasks.image_classification.space import list_lookup_sites
from backbones import build
from search.space import SPACES

draw_lookups = cache(lookup.draw_lookups)


def read_label(image: np.ndarray) -> str:
    """Return the shape that has the colour of the filled cell, found by looking."""
    marked = image > lookup.NOISE
    size = lookup.CELL
    shown, filled = {}, []
    for y in range(0, len(image), size):
        for x in range(0, len(image), size):
            cell = marked[y : y + size, x : x + size]
            if cell.any():
                colour, bits = tuple(cell.any((0, 1))), cell.any(2)
                if bits.all():
                    filled.append(colour)
                else:
                    shown[colour] = tuple("".join(".#"[int(bit)] for bit in row) for row in bits[::2, ::2])
    (asked,) = filled
    assert len(shown) == len(lookup.COLOURS)
    return next(name for name, shape in lookup.SHAPES.items() if shape == shown[asked])


def test_labels_are_what_an_eye_would_find():
    names = list(lookup.SHAPES)
    for images, labels in draw_lookups().values():
        assert [read_label(image) for image in images[:40]] == [names[label] for label in labels[:40]]


def test_no_picture_is_in_two_splits_and_no_class_is_rare():
    assert {split: len(images) for split, (images, _) in draw_lookups().items()} == lookup.COUNTS
    everything = [image.tobytes() for images, _ in draw_lookups().values() for image in images]
    assert len(set(everything)) == len(everything)
    for _, labels in draw_lookups().values():
        assert np.bincount(labels).min() > 0.2 * len(labels)


def test_training_sees_the_whole_picture():
    boxes = draw_boxes(torch.ones(8), scale=1.0, flip=False, generator=torch.Generator().manual_seed(0))
    assert boxes.tolist() == [[1, 1, 0, 0]] * 8


def test_small_resnet_has_the_stages_of_torchvisions():
    small = build("small-resnet", classes=4, blocks="3-1-2-1", channels=64)
    reference = ResNet(BasicBlock, [3, 1, 2, 1], num_classes=4)
    for number in range(1, 5):
        ours, theirs = getattr(small, f"stage{number}"), getattr(reference, f"layer{number}")
        theirs.load_state_dict(ours.state_dict())
        x = torch.rand(2, 64 * 2 ** max(0, number - 2), 8, 8)
        assert torch.equal(ours.eval()(x), theirs.eval()(x))


def test_free_answers_leave_the_early_sites_to_a_search():
    sites = [site.name for site in list_lookup_sites()]
    free = {
        sites[answer[key]] for answer in SPACES["lookup"].free() for key in answer if key.startswith("site")
    }
    assert sites[:3] == ["stem", "stage1.block1.branch", "stage1.block1"]
    assert not free & set(sites[:3])
