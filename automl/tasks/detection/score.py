"""Average precision of boxes and masks, over the whole split and all workers, by pycocotools.

Source: T.-Y. Lin et al., Microsoft COCO (2014), arXiv 1405.0312; https://cocodataset.org/#detection-eval.
"""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from automl.base.lazy import optional
from automl.config.runtime import Runtime
from automl.task.evaluator import Evaluator
from automl.tasks.detection.data import Objects
from automl.tasks.detection.data.masks import encode_masks, mask_areas

coco = optional("pycocotools.coco", "detection")
cocoeval = optional("pycocotools.cocoeval", "detection")

Kind = Literal["bbox", "segm"]  # pycocotools' names
PARTS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  # in the order of pycocotools' summary
PREFIXES: Mapping[Kind, str] = {"bbox": "box", "segm": "mask"}
SURE = 0.5  # threshold for a pixel of a mask, as in torchvision and Detectron


@dataclass(frozen=True, kw_only=True)
class Truth:
    """True objects of the image `index` of a split.

    Attributes:
        original: Width and height in pixels of the image that `objects` has boxes and areas for.
        stored: Width and height of the image that the model takes, and of the masks.
    """

    index: int
    objects: Objects
    original: tuple[int, int]
    stored: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class _Detections:
    """Detections in an image: boxes `(N, 4)` in COCO's format, scores, labels, and masks if there are any."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[bytes]


def metric_names(kind: Kind) -> list[str]:
    return [f"{PREFIXES[kind]}_{suffix}" for suffix in PARTS]


class DetectionEvaluator(Evaluator):
    """Average precision. `box_ap` is the mean over categories and overlaps from 0.5 to 0.95, from 0 to 1.

    `box_ap50` and `box_ap75` have one overlap. `box_ap_small`, `_medium` and `_large` are for objects of up
    to 32 and 96 pixels squared in the original image, and above. They are NaN if the split has none. With
    masks there are the same metrics with the prefix `mask_`, by overlaps of masks at the size of stored
    images. `classes` is the number of categories.
    """

    def __init__(self, classes: int, *, masks: bool, device: torch.device) -> None:
        self.classes, self.masks, self.device = classes, masks, device
        self.seen: list[tuple[Truth, _Detections]] = []

    def update(self, outputs: Sequence[Mapping[str, Tensor]], targets: Sequence[Truth]) -> None:
        """Add the `boxes`, `scores`, `labels` and `masks` of each image, in torchvision's format."""
        for output, truth in zip(outputs, targets, strict=True):
            boxes = output["boxes"].double().cpu().numpy()
            corners = boxes * np.tile(np.array(truth.original) / truth.stored, 2)
            corners[:, 2:] -= corners[:, :2]
            masks = (
                encode_masks((output["masks"][:, 0] >= SURE).cpu().numpy())
                if self.masks and len(boxes)
                else []
            )
            detections = _Detections(
                boxes=corners,
                scores=output["scores"].double().cpu().numpy(),
                labels=output["labels"].cpu().numpy(),
                masks=masks,
            )
            self.seen.append((truth, detections))

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        seen = [pair for pairs in runtime.gather(self.seen) for pair in pairs]
        seen.sort(key=lambda pair: pair[0].index)
        metrics: dict[str, Tensor] = {}
        for kind in ("bbox", "segm") if self.masks else ("bbox",):
            values = average_precision(seen, self.classes, kind)
            for name, value in zip(metric_names(kind), values, strict=True):
                metrics[name] = torch.tensor(value, dtype=torch.float64, device=self.device)
        return metrics


def average_precision(seen: Sequence[tuple[Truth, _Detections]], classes: int, kind: Kind) -> list[float]:
    """Return the PARTS that pycocotools computes, NaN if there are no such objects."""
    truths = [truth for truth, _ in seen]
    with redirect_stdout(io.StringIO()):
        evaluation = cocoeval.COCOeval(
            _dataset(truths, classes, chain.from_iterable(_true(truth, kind) for truth in truths)),
            _dataset(truths, classes, chain.from_iterable(_answered(*pair, kind) for pair in seen)),
            kind,
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values: list[float] = evaluation.stats[: len(PARTS)].tolist()
    return [value if value >= 0 else float("nan") for value in values]


def _dataset(truths: Sequence[Truth], classes: int, annotations: Iterable[dict[str, Any]]) -> Any:
    dataset = coco.COCO()
    dataset.dataset = {
        "images": [
            {"id": truth.index, "width": truth.stored[0], "height": truth.stored[1]} for truth in truths
        ],
        "categories": [{"id": number} for number in range(1, classes + 1)],
        "annotations": [{**entry, "id": number} for number, entry in enumerate(annotations, start=1)],
    }
    dataset.createIndex()
    return dataset


def _true(truth: Truth, kind: Kind) -> Iterator[dict[str, Any]]:
    objects = truth.objects
    for i in range(len(objects)):
        entry = _annotation(truth, kind, objects, i, float(objects.areas[i]))
        yield {**entry, "iscrowd": int(objects.crowd[i])}


def _answered(truth: Truth, detections: _Detections, kind: Kind) -> Iterator[dict[str, Any]]:
    width, height = truth.stored
    by_pixel = truth.original[0] * truth.original[1] / (width * height)
    areas = detections.boxes[:, 2] * detections.boxes[:, 3]
    if kind == "segm":
        areas = mask_areas(detections.masks, height, width) * by_pixel
    for i in range(len(detections.labels)):
        entry = _annotation(truth, kind, detections, i, float(areas[i]))
        yield {**entry, "iscrowd": 0, "score": float(detections.scores[i])}


def _annotation(
    truth: Truth, kind: Kind, objects: Objects | _Detections, i: int, area: float
) -> dict[str, Any]:
    """Return object `i` of an image in COCO's format."""
    entry: dict[str, Any] = {
        "image_id": truth.index,
        "category_id": int(objects.labels[i]),
        "bbox": objects.boxes[i].tolist(),
        "area": area,
    }
    if kind == "segm":
        assert objects.masks is not None, "of a dataset with masks"
        width, height = truth.stored
        entry["segmentation"] = {"size": [height, width], "counts": objects.masks[i]}
    return entry
