"""`scenes`: the scenes of `automl.data.digits`: ten categories, with boxes and masks.

The box and the mask of a digit cover only what is visible of it.
"""

import hashlib
import json
from functools import cache
from typing import Any

import numpy as np

from automl.data.digits import COUNTS, SIDE, Scene, draw_scenes
from automl.tasks.detection.data import masks
from automl.tasks.detection.data.coco_folder import DetectionListing
from automl.tasks.detection.data.objects import Photo


@cache
def read_scenes() -> DetectionListing:
    """Return all scenes as a folder in COCO's layout would list them."""
    splits: dict[str, list[Photo]] = {split: [] for split in COUNTS}
    for scene in draw_scenes():
        splits[scene.split].append(_make_photo(scene))
    return DetectionListing(categories={i + 1: str(i) for i in range(10)}, splits=splits, has_masks=True)


def _make_photo(scene: Scene) -> Photo:
    annotations = [_make_annotation(*pair) for pair in zip(scene.masks, scene.categories, strict=True)]
    key = hashlib.sha256(scene.image.tobytes()).digest()
    content = hashlib.sha256(key + json.dumps(annotations).encode()).digest()
    return Photo(
        name=scene.name,
        image=scene.image,
        width=SIDE,
        height=SIDE,
        key=key,
        content=content,
        annotations=annotations,
    )


def _make_annotation(mask: np.ndarray, category: int) -> dict[str, Any]:
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "category_id": category,
        "bbox": [left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": [*mask.shape], "counts": masks.encode_masks(mask[None])[0].decode()},
    }
