"""Average precision of boxes and masks, over the whole split and all workers, by pycocotools.

Source: T.-Y. Lin et al., Microsoft COCO (2014), arXiv 1405.0312; https://cocodataset.org/#detection-eval.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from automl.base.lazy import optional
from automl.config.runtime import Runtime
from automl.tasks.detection.data import Objects
from automl.tasks.detection.data.masks import encode_masks, mask_areas
from automl.tasks.evaluator import Evaluator

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
            scale = np.array(truth.original) / truth.stored
            corners = boxes * np.tile(scale, 2)
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
    with redirect_stdout(io.StringIO()):
        evaluation = cocoeval.COCOeval(
            _dataset(seen, classes, [annotation for truth, _ in seen for annotation in _true(truth, kind)]),
            _dataset(
                seen,
                classes,
                [
                    annotation
                    for truth, detections in seen
                    for annotation in _answered(truth, detections, kind)
                ],
            ),
            kind,
        )
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values: list[float] = evaluation.stats[: len(PARTS)].tolist()
    return [value if value >= 0 else float("nan") for value in values]


def _dataset(
    seen: Sequence[tuple[Truth, _Detections]], classes: int, annotations: list[dict[str, Any]]
) -> Any:
    dataset = coco.COCO()
    for number, entry in enumerate(annotations, start=1):
        entry["id"] = number
    dataset.dataset = {
        "images": [
            {"id": truth.index, "width": truth.stored[0], "height": truth.stored[1]} for truth, _ in seen
        ],
        "categories": [{"id": number} for number in range(1, classes + 1)],
        "annotations": annotations,
    }
    dataset.createIndex()
    return dataset


def _true(truth: Truth, kind: Kind) -> Iterator[dict[str, Any]]:
    objects = truth.objects
    for i in range(len(objects)):
        entry: dict[str, Any] = {
            "image_id": truth.index,
            "category_id": int(objects.labels[i]),
            "bbox": objects.boxes[i].tolist(),
            "area": float(objects.areas[i]),
            "iscrowd": int(objects.crowd[i]),
        }
        if kind == "segm":
            assert objects.masks is not None, "of a dataset with masks"
            entry["segmentation"] = _lengths(objects.masks[i], truth)
        yield entry


def _answered(truth: Truth, detections: _Detections, kind: Kind) -> Iterator[dict[str, Any]]:
    width, height = truth.stored
    by_pixel = truth.original[0] * truth.original[1] / (width * height)
    areas = detections.boxes[:, 2] * detections.boxes[:, 3]
    if kind == "segm":
        areas = mask_areas(detections.masks, height, width) * by_pixel
    for i in range(len(detections.labels)):
        entry = {
            "image_id": truth.index,
            "category_id": int(detections.labels[i]),
            "bbox": detections.boxes[i].tolist(),
            "area": float(areas[i]),
            "iscrowd": 0,
            "score": float(detections.scores[i]),
        }
        if kind == "segm":
            entry["segmentation"] = _lengths(detections.masks[i], truth)
        yield entry


def _lengths(counts: bytes, truth: Truth) -> dict[str, Any]:
    width, height = truth.stored
    return {"size": [height, width], "counts": counts}
