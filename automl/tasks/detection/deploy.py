"""Deployment of a detector: a graph from images to boxes and masks, and its input and output files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from automl.data.pictures import SUFFIXES, is_picture, open_picture
from automl.task.deployment import Arrays, TaskDeployment
from automl.tasks.detection.data.masks import encode_masks, scale_size

IMAGES, SIZES = "images", "sizes"
OUTPUTS = ("boxes", "labels", "scores", "masks")
SHOWN = 0.5  # least score of an object that is reported and drawn
MIN_COMPARED_SCORE = 0.1  # least score of an object that exported forms must agree on
SURE = 0.5  # threshold for a pixel of a mask
COLOURS = ((230, 60, 60), (60, 140, 230), (50, 170, 80), (240, 170, 30), (160, 80, 200), (20, 170, 180))

REQUEST = """
from PIL import Image, ImageOps

photo = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
photo.thumbnail(({size}, {size}), Image.Resampling.BILINEAR)
image = np.zeros((1, {canvas}, {canvas}, 3), np.uint8)
image[0, : photo.height, : photo.width] = photo
inputs = {{"images": image.tolist(), "sizes": [[photo.height, photo.width]]}}  # one image
"""


def pad_images(images: Sequence[np.ndarray], canvas: int) -> dict[str, Tensor]:
    """Return images, uint8 `(H, W, 3)`, as the graph takes them, with zeros at the bottom and the right."""
    canvases = np.zeros((len(images), canvas, canvas, 3), np.uint8)
    for target, image in zip(canvases, images, strict=True):
        target[: image.shape[0], : image.shape[1]] = image
    sizes = np.array([image.shape[:2] for image in images], np.int64)
    return {IMAGES: torch.from_numpy(canvases), SIZES: torch.from_numpy(sizes)}


class DetectionDeployment(TaskDeployment):
    """Use of a detector without its dataset."""

    suffixes = SUFFIXES
    tolerance = 1e-2

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read image files of any size, scaled like validation images."""
        details = exported["details"]
        for path in paths:
            picture = open_picture(path).image
            scaled_size = scale_size(*picture.size, details["size"])
            if scaled_size != picture.size:
                picture = picture.resize(scaled_size, Image.Resampling.BILINEAR)
            inputs = pad_images([np.asarray(picture)], details["canvas"])
            yield str(path), {name: value.numpy() for name, value in inputs.items()}

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the objects with a score of SHOWN or more."""
        labels = exported["details"]["labels"]
        objects = [
            {"label": labels[int(label) - 1], "score": float(score), "box": box.round(2).tolist()}
            for box, label, score in zip(*(outputs[name] for name in OUTPUTS[:3]), strict=True)
            if score >= SHOWN
        ]
        texts = [f"{detection['label']} ({detection['score']:.1%})" for detection in objects]
        return ", ".join(texts) or "nothing", {"objects": objects}

    @classmethod
    def write(cls, exported: Mapping[str, Any], name: str, outputs: Arrays, path: Path) -> list[Path]:
        """Write `PATH.json`, all detections in COCO's format, and `PATH.png`, a picture of the certain ones.

        The image is `name`; boxes and masks are in its pixels. `category_id` is the number of the category in
        the training annotations. `image_id` is the name without its suffix, as a number if possible.
        """
        picture = open_picture(name).image
        scale = np.array(picture.size) / scale_size(*picture.size, exported["details"]["size"])
        labels, categories = (exported["details"][key] for key in ("labels", "category_ids"))
        image = Path(name)
        number = int(image.stem) if image.stem.isascii() and image.stem.isdecimal() else image.stem
        is_detected = outputs["scores"] > 0
        boxes = outputs["boxes"][is_detected] * np.tile(scale, 2)
        pasted = None
        if "masks" in outputs:
            pasted = paste_masks(outputs["masks"][is_detected], boxes, *picture.size)
        results = []
        for i, (box, label, score) in enumerate(
            zip(boxes, outputs["labels"][is_detected], outputs["scores"][is_detected], strict=True)
        ):
            left, top, right, bottom = (round(float(value), 2) for value in box)
            entry: dict[str, Any] = {
                "image_id": number,
                "file_name": image.name,
                "category_id": categories[int(label) - 1],
                "category": labels[int(label) - 1],
                "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
                "score": round(float(score), 4),
            }
            if pasted is not None:
                counts = encode_masks(pasted[i : i + 1])[0].decode()
                entry["segmentation"] = {"size": [picture.height, picture.width], "counts": counts}
            results.append(entry)
        files = [path.with_name(f"{path.name}{suffix}") for suffix in (".json", ".png")]
        files[0].write_text(json.dumps(results, indent=1))
        certain = [i for i, entry in enumerate(results) if entry["score"] >= SHOWN]
        masks = None if pasted is None else pasted[certain]
        draw_objects(picture, [results[i] for i in certain], masks).save(files[1])
        return files

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the largest difference of two forms' detections: of scores, masks and relative boxes.

        Objects with a score of MIN_COMPARED_SCORE or more are compared with the nearest object of the same
        label. Boxes count as fractions of the image's side. Rounding may change the order of neighbours, and
        objects with a low score.
        """
        side = max(float(ours["boxes"].max(initial=1.0)), 1.0)
        worst = 0.0
        for form_a, form_b in ((ours, theirs), (theirs, ours)):
            for image in range(len(form_a["scores"])):
                detections, others = (
                    {key: value[image] for key, value in form.items()} for form in (form_a, form_b)
                )
                for i in np.flatnonzero(detections["scores"] >= MIN_COMPARED_SCORE):
                    worst = max(worst, _nearest(detections, int(i), others, side))
        return worst

    @classmethod
    def reads(cls, file: Path) -> bool:
        return is_picture(file)


def paste_masks(masks: np.ndarray, boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """Paste masks `(D, 28, 28)` of boxes `(D, 4)` into an image, bool `(D, height, width)`."""
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    if not len(masks):
        return np.zeros((0, height, width), bool)
    pasted: Tensor = paste_masks_in_image(
        torch.from_numpy(masks).unsqueeze(1), torch.from_numpy(boxes).float(), (height, width)
    )
    return (pasted[:, 0] >= SURE).numpy()


def draw_objects(
    picture: Image.Image, objects: Sequence[Mapping[str, Any]], masks: np.ndarray | None
) -> Image.Image:
    """Return a copy of the picture with the box, the label, the score and the mask of each object."""
    pixels = np.asarray(picture).astype(np.float32)
    colours = [COLOURS[detection["category_id"] % len(COLOURS)] for detection in objects]
    if masks is not None:
        for colour, mask in zip(colours, masks, strict=True):
            pixels[mask] = 0.5 * pixels[mask] + 0.5 * np.array(colour)
    image = Image.fromarray(pixels.round().astype(np.uint8))
    pen = ImageDraw.Draw(image)
    for colour, detection in zip(colours, objects, strict=True):
        left, top, width, height = detection["bbox"]
        pen.rectangle((left, top, left + width, top + height), outline=colour)
        pen.text((left + 2, top + 1), f"{detection['category']} {detection['score']:.2f}", fill=colour)
    return image


def _nearest(detections: Arrays, i: int, others: Arrays, side: float) -> float:
    candidates = np.flatnonzero((others["labels"] == detections["labels"][i]) & (others["scores"] > 0))
    if not len(candidates):
        return 1.0
    distances = np.abs(others["boxes"][candidates] - detections["boxes"][i]).max(1) / side
    distances = np.maximum(distances, np.abs(others["scores"][candidates] - detections["scores"][i]))
    if "masks" in detections:
        masks = (
            np.abs(others["masks"][candidates] - detections["masks"][i]).reshape(len(candidates), -1).max(1)
        )
        distances = np.maximum(distances, masks)
    return float(distances.min())
