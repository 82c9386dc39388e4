"""The task detection: metrics against pycocotools on files, augmentation, initial weights."""

import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.detection import DetectionData, DetectionTraining
from automl.tasks.detection.data import Objects
from automl.tasks.detection.data.augment import Augmentation, augment, draw_augmentations
from automl.tasks.detection.data.masks import encode_masks
from automl.tasks.detection.score import DetectionEvaluator, Truth, metric_names
from automl.tasks.detection.task import Detection
from search.config import TrialConfig
from tests.helpers.automl_cases import HERE
from tests.helpers.detection_cases import SMALL, few_scenes

SIDE, CLASSES = 192, 4


@pytest.fixture
def few() -> Iterator[None]:
    with few_scenes(12, 4):
        yield


def opened(runtime: Runtime = HERE, **parts: Any) -> Detection:
    config = TrialConfig(
        task="detection", data=DetectionData(), model=SMALL, training=DetectionTraining(batch_size=4)
    ).change(**parts)
    task = open_task(config, runtime)
    assert isinstance(task, Detection)
    return task


def boxes(count: int, numbers: np.random.Generator) -> np.ndarray:
    """Return random boxes from small to large, `(count, 4)`: left, top, width and height."""
    sides = np.exp(numbers.uniform(np.log(6), np.log(SIDE - 4), (count, 2)))
    return np.concatenate([numbers.random((count, 2)) * (SIDE - sides), sides], 1).round(2)


def filled(boxes: np.ndarray) -> np.ndarray:
    """Return the mask of an ellipse in each box, uint8 `(N, SIDE, SIDE)`."""
    rows, columns = np.mgrid[:SIDE, :SIDE] + 0.5
    left, top, width, height = (boxes[:, i, None, None] for i in range(4))
    inside = ((columns - left) / width - 0.5) ** 2 + ((rows - top) / height - 0.5) ** 2
    return (inside <= 0.25).astype(np.uint8)


def lengths(mask: np.ndarray) -> dict[str, Any]:
    counts = coco_mask.encode(np.asfortranarray(mask))["counts"]
    return {"size": [SIDE, SIDE], "counts": counts.decode()}


def written(folder: Path, name: str, content: Any) -> str:
    (folder / name).write_text(json.dumps(content))
    return str(folder / name)


def test_average_precision_equals_that_of_pycocotools_on_files(tmp_path: Path) -> None:
    """Compare 500 random predictions on 40 images, some without objects, some with crowds."""
    numbers = np.random.default_rng(1)
    evaluator = DetectionEvaluator(CLASSES, masks=True, device=torch.device("cpu"))
    truths, answers = [], []
    for image in range(40):
        count = int(numbers.integers(0, 8))
        true, labels = boxes(count, numbers), numbers.integers(1, CLASSES + 1, count)
        crowd, masks = numbers.random(count) < 0.1, filled(true)
        areas = masks.sum((1, 2)).astype(float)
        for i in range(count):
            truths.append({"id": len(truths) + 1, "image_id": image, "category_id": int(labels[i]),
                           "bbox": true[i].tolist(), "area": areas[i], "iscrowd": int(crowd[i]),
                           "segmentation": lengths(masks[i])})  # fmt: skip
        near = true[numbers.integers(0, count, 8)] if count else boxes(8, numbers)
        guesses = np.concatenate([near + numbers.normal(0, 2, near.shape), boxes(5, numbers)])[: 500 // 40]
        guesses[:, :2] = guesses[:, :2].clip(0, SIDE - 8)
        guesses[:, 2:] = np.minimum(guesses[:, 2:].clip(4), SIDE - guesses[:, :2])
        kinds = numbers.integers(1, CLASSES + 1, len(guesses))
        kinds[:6] = labels[numbers.integers(0, count, 6)] if count else kinds[:6]
        scores, ellipses = numbers.random(len(guesses)), filled(guesses)
        for i in range(len(guesses)):
            answers.append({"image_id": image, "category_id": int(kinds[i]), "score": float(scores[i]),
                            "bbox": guesses[i].tolist(), "segmentation": lengths(ellipses[i])})  # fmt: skip
        corners = guesses.copy()
        corners[:, 2:] += corners[:, :2]
        outputs = {
            "boxes": torch.from_numpy(corners),
            "scores": torch.from_numpy(scores),
            "labels": torch.from_numpy(kinds),
            "masks": torch.from_numpy(ellipses).unsqueeze(1).float(),
        }
        objects = Objects(boxes=true, labels=labels, crowd=crowd, areas=areas, masks=encode_masks(masks))
        truth = Truth(index=image, objects=objects, original=(SIDE, SIDE), stored=(SIDE, SIDE))
        evaluator.update([outputs], [truth])
    metrics = {name: float(value) for name, value in evaluator.compute(HERE).items()}
    content = {
        "images": [{"id": i, "width": SIDE, "height": SIDE} for i in range(40)],
        "categories": [{"id": i, "name": str(i)} for i in range(1, CLASSES + 1)],
        "annotations": truths,
    }
    with redirect_stdout(io.StringIO()):
        ground_truth = COCO(written(tmp_path, "instances.json", content))
        for kind in ("bbox", "segm"):
            kept = [{k: v for k, v in a.items() if kind == "segm" or k != "segmentation"} for a in answers]
            kept = [{k: v for k, v in a.items() if kind == "bbox" or k != "bbox"} for a in kept]
            theirs = COCOeval(
                ground_truth, ground_truth.loadRes(written(tmp_path, "results.json", kept)), kind
            )
            theirs.evaluate(), theirs.accumulate(), theirs.summarize()
            ours = [metrics[name] for name in metric_names(kind)]
            assert ours == pytest.approx(theirs.stats[:6].tolist(), abs=1e-9)
            assert 0.05 < ours[0] < 0.9
    assert len(answers) == 480


def test_scaled_images_are_scored_in_pixels_of_the_original() -> None:
    """Detections at half the size have the same score and area as at full size."""
    true = np.array([[10.0, 20, 40, 50], [60, 30, 64, 90]])
    results = []
    for scale in (1, 2):
        evaluator = DetectionEvaluator(1, masks=False, device=torch.device("cpu"))
        objects = Objects(
            boxes=true, labels=np.ones(2, np.int64), crowd=np.zeros(2, bool), areas=true[:, 2] * true[:, 3]
        )
        corners = true / scale
        corners[:, 2:] += corners[:, :2]
        outputs = {
            "boxes": torch.from_numpy(corners + 1 / scale),
            "scores": torch.tensor([0.9, 0.8]),
            "labels": torch.ones(2, dtype=torch.int64),
        }
        truth = Truth(index=0, objects=objects, original=(200, 200), stored=(200 // scale, 200 // scale))
        evaluator.update([outputs], [truth])
        results.append({name: float(value) for name, value in evaluator.compute(HERE).items()})
    assert results[0] == pytest.approx(results[1], nan_ok=True)
    assert results[0]["box_ap_small"] != results[0]["box_ap_small"], "there are no small objects"
    assert results[0]["box_ap50"] == pytest.approx(1)


def scene() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return an image of two rectangles of one colour each, with their masks and boxes."""
    corners = torch.tensor([[8.0, 12, 40, 50], [50, 30, 90, 94]])
    image, masks = torch.zeros(3, 96, 96), torch.zeros(2, 96, 96, dtype=torch.uint8)
    for i, (left, top, right, bottom) in enumerate(corners.int().tolist()):
        masks[i, top:bottom, left:right] = 1
        image[i, top:bottom, left:right] = 1
    return image, {"boxes": corners, "labels": torch.tensor([1, 2]), "masks": masks}


@pytest.mark.parametrize("scale", [0.5, 0.8, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("mirrored", [False, True])
def test_boxes_and_masks_change_with_their_image(scale: float, mirrored: bool) -> None:
    numbers = np.random.default_rng(2)
    for _ in range(5):
        x, y = numbers.random(2)
        image, target = augment(*scene(), Augmentation(scale=scale, x=x, y=y, mirrored=mirrored), 96)
        assert max(image.shape[1:]) == min(96, round(96 * scale))
        for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
            bright = image[int(label) - 1] > 0.5
            assert mask.shape == image.shape[1:]
            assert (bright != (mask > 0)).float().mean() < 0.02
            rows, columns = (torch.nonzero(bright.any(axis)).flatten() for axis in (1, 0))
            around = torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            assert (box - around).abs().max() <= 1


def test_crops_and_scales_have_their_bounds() -> None:
    image, target = augment(*scene(), Augmentation(scale=2, x=0, y=0, mirrored=False), 64)
    assert image.shape == (3, 64, 64)
    assert target["labels"].tolist() == [1]
    assert target["boxes"].tolist() == [[16, 24, 64, 64]]
    _, target = augment(*scene(), Augmentation(scale=2, x=0.99, y=0, mirrored=False), 32)
    assert target["masks"].shape == (0, 32, 32)
    assert target["boxes"].shape == (0, 4)
    drawn = draw_augmentations(500, np.random.default_rng(0), flip=True, scale=(0.5, 2.0))
    scales = np.array([augmentation.scale for augmentation in drawn])
    assert 0.5 <= scales.min() < 0.52
    assert 1.95 < scales.max() <= 2
    assert 0.45 < np.mean([augmentation.mirrored for augmentation in drawn]) < 0.55
    assert np.median(scales) == pytest.approx(1, abs=0.1)


@pytest.mark.usefixtures("few")
def test_answers_do_not_depend_on_the_other_images() -> None:
    task = opened()
    model = task.model().eval()
    image = torch.rand(3, 40, 64)
    with torch.no_grad():
        (alone,) = model([image])
        beside, _ = model([image, torch.rand(3, 96, 96)])
    torch.testing.assert_close(alone, beside, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("few")
def test_a_backbone_starts_from_a_classifier_and_its_first_stages_stay(tmp_path: Path) -> None:
    torch.manual_seed(5)
    classifier = SMALL.build(classes=7, size=96)
    torch.save(classifier.state_dict(), tmp_path / "backbone.pt")
    model = {"weights": str(tmp_path / "backbone.pt"), "frozen_stages": 2, "frozen_norms": True}
    task = opened(model=model)
    model = task.model()
    new = task.initialise(model)
    assert new
    assert not any(name.startswith("backbone.body.") for name in new)
    body = model.backbone.body.state_dict()
    weights = classifier.state_dict()
    assert body.keys() < weights.keys()
    assert all(torch.equal(body[name], weights[name]) for name in body)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    task.loss(model.train(), next(task.batches(0))).backward()
    optimizer.step()
    moved = {n for n, value in model.backbone.body.state_dict().items() if not torch.equal(value, weights[n])}
    assert moved, "the later stages learn"
    assert not any("running" in name or "num_batches" in name for name in moved)
    stages = [name for name in moved if name.startswith("4.") or name.startswith("5.")]
    assert not [n for n, p in model.backbone.body.named_parameters() if not p.requires_grad and n in moved], (
        stages
    )
    torch.save(model.state_dict(), tmp_path / "detector.pt")
    whole = opened(model={"weights": str(tmp_path / "detector.pt")})
    assert whole.initialise(again := whole.model()) == []
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
