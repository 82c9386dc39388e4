"""From boxes and masks to average precision, over the whole split and all workers, by pycocotools.

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

from automl.config.runtime import Runtime
from automl.data.detection import Objects
from automl.data.detection.masks import encode_masks, mask_areas
from automl.tasks.evaluator import Evaluator
from backbones.extras import optional

coco = optional("pycocotools.coco", "detection")
cocoeval = optional("pycocotools.cocoeval", "detection")

Kind = Literal["bbox", "segm"]  # as pycocotools has them
PARTS = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  # in the order of its summary
PREFIXES: Mapping[Kind, str] = {"bbox": "box", "segm": "mask"}
SURE = 0.5  # of a pixel of a mask, as torchvision's and Detectron's predictions have it


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What is in an image. index: its number in the split.

    original: width and height in pixels of which `objects` has boxes and areas; stored: those of the image
    that the model takes and of the masks.
    """

    index: int
    objects: Objects
    original: tuple[int, int]
    stored: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class _Detections:
    """What was found in an image: boxes (N, 4) as COCO has them, scores, labels, and masks or none."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    masks: list[bytes]


def metric_names(kind: Kind) -> list[str]:
    return [f"{PREFIXES[kind]}_{part}" for part in PARTS]


class DetectionEvaluator(Evaluator):
    """`box_ap`, the mean of the average precision over categories and overlaps of 0.5 to 0.95, from 0 to 1.

    Beside it `box_ap50` and `box_ap75` at one overlap, `box_ap_small`, `_medium` and `_large` of objects of
    up to 32 and 96 pixels squared in the original image, NaN where the split has none; with masks all of
    these as `mask_ap` and so on, with overlaps of masks at the size that the images are stored in.

    classes: the number of categories.
    """

    def __init__(self, classes: int, *, masks: bool, device: torch.device) -> None:
        self.classes, self.masks, self.device = classes, masks, device
        self.seen: list[tuple[Truth, _Detections]] = []

    def update(self, outputs: Sequence[Mapping[str, Tensor]], targets: Sequence[Truth]) -> None:
        """outputs: of each image `boxes`, `scores`, `labels` and `masks`, as torchvision has them."""
        for found, truth in zip(outputs, targets, strict=True):
            boxes = found["boxes"].double().cpu().numpy()
            scale = np.array(truth.original) / truth.stored
            corners = boxes * np.tile(scale, 2)
            corners[:, 2:] -= corners[:, :2]
            masks = (
                encode_masks((found["masks"][:, 0] >= SURE).cpu().numpy())
                if self.masks and len(boxes)
                else []
            )
            kept = _Detections(
                boxes=corners,
                scores=found["scores"].double().cpu().numpy(),
                labels=found["labels"].cpu().numpy(),
                masks=masks,
            )
            self.seen.append((truth, kept))

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        seen = [pair for part in runtime.gather(self.seen) for pair in part]
        seen.sort(key=lambda pair: pair[0].index)
        found: dict[str, Tensor] = {}
        for kind in ("bbox", "segm") if self.masks else ("bbox",):
            values = average_precision(seen, self.classes, kind)
            for name, value in zip(metric_names(kind), values, strict=True):
                found[name] = torch.tensor(value, dtype=torch.float64, device=self.device)
        return found


def average_precision(seen: Sequence[tuple[Truth, _Detections]], classes: int, kind: Kind) -> list[float]:
    """PARTS by pycocotools. NaN where there are no objects to find."""
    with redirect_stdout(io.StringIO()):
        evaluation = cocoeval.COCOeval(
            _dataset(seen, classes, [a for truth, _ in seen for a in _true(truth, kind)]),
            _dataset(seen, classes, [a for truth, found in seen for a in _answered(truth, found, kind)]),
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
    made = coco.COCO()
    for number, entry in enumerate(annotations, start=1):
        entry["id"] = number
    made.dataset = {
        "images": [
            {"id": truth.index, "width": truth.stored[0], "height": truth.stored[1]} for truth, _ in seen
        ],
        "categories": [{"id": number} for number in range(1, classes + 1)],
        "annotations": annotations,
    }
    made.createIndex()
    return made


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


def _answered(truth: Truth, found: _Detections, kind: Kind) -> Iterator[dict[str, Any]]:
    width, height = truth.stored
    by_pixel = truth.original[0] * truth.original[1] / (width * height)
    areas = found.boxes[:, 2] * found.boxes[:, 3]
    if kind == "segm":
        areas = mask_areas(found.masks, height, width) * by_pixel
    for i in range(len(found.labels)):
        entry = {
            "image_id": truth.index,
            "category_id": int(found.labels[i]),
            "bbox": found.boxes[i].tolist(),
            "area": float(areas[i]),
            "iscrowd": 0,
            "score": float(found.scores[i]),
        }
        if kind == "segm":
            entry["segmentation"] = _lengths(found.masks[i], truth)
        yield entry


def _lengths(counts: bytes, truth: Truth) -> dict[str, Any]:
    width, height = truth.stored
    return {"size": [height, width], "counts": counts}
