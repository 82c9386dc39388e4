"""Deployment of a stereo model: a graph from two images to disparities, and pairs of input files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.data.augment import normalise
from automl.data.csv_table import read_table
from automl.data.pictures import read_picture
from automl.task.deployment import Arrays, TaskDeployment
from automl.tasks.stereo.data.pairs import read_views, write_pfm

LEFT, RIGHT, OUTPUT = "left", "right", "disparity"
COLUMNS = (LEFT, RIGHT)

# Colours of pictures, at fractions of the largest disparity.
STOPS = (0.0, 0.25, 0.5, 0.75, 1.0)
COLOURS = ((30, 30, 120), (30, 140, 230), (60, 200, 100), (250, 200, 40), (190, 20, 30))

REQUEST = """
from PIL import Image, ImageOps

inputs = {{
    name: np.asarray(ImageOps.exif_transpose(Image.open(f"{{name}}.png")).convert("RGB"))[None].tolist()
    for name in ("left", "right")
}}  # one pair, each of {height} x {width} pixels
"""


class Disparities(nn.Module):
    """Normalisation and the model in one graph, so that users cannot normalise wrongly."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Return disparities `(N, H, W)` of two images, uint8 `(N, H, W, 3)`."""
        y: Tensor = self.model(normalise(left).contiguous(), normalise(right).contiguous())
        return y


def pad_image(image: np.ndarray, height: int, width: int, file: str | Path) -> np.ndarray:
    """Return an image, uint8 `(1, height, width, 3)`, zeros at the end. Raises InputError if it is larger."""
    h, w = image.shape[:2]
    if h > height or w > width:
        raise InputError(
            f"{file} must have {width} x {height} pixels or less, for which the model was exported; "
            f"got {w} x {h}"
        )
    return np.pad(image, ((0, height - h), (0, width - w), (0, 0)))[None]


class StereoDeployment(TaskDeployment):
    """Use of a stereo model without its dataset."""

    suffixes = (".csv",)
    tolerance = 1e-2  # pixels

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read the pairs of CSV files with the columns left and right, named by their left image."""
        size = exported["details"]["height"], exported["details"]["width"]
        for path in paths:
            for files in _read_pairs(Path(path)):
                images = read_views(*files)[:2]
                if images[0].shape != images[1].shape:
                    sizes = " and ".join(f"{image.shape[1]} x {image.shape[0]}" for image in images)
                    raise InputError(f"{files[0]} and {files[1]} must be of one size; got {sizes}")
                padded = (pad_image(image, *size, file) for image, file in zip(images, files, strict=True))
                yield files[0], dict(zip(COLUMNS, padded, strict=True))

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the smallest, mean and largest disparity of the graph's output, including padding."""
        disparities = outputs[OUTPUT]
        values = {
            "least": float(disparities.min()),
            "mean": float(disparities.mean()),
            "largest": float(disparities.max()),
        }
        return ", ".join(f"{name} {value:.2f} px" for name, value in values.items()), values

    @classmethod
    def write(cls, exported: Mapping[str, Any], name: str, outputs: Arrays, path: Path) -> list[Path]:
        """Write `PATH.pfm` and a colour picture, `PATH.png`, of the size of the left image `name`."""
        width, height = read_picture(name).size
        values = outputs[OUTPUT][:height, :width]
        files = [path.with_name(f"{path.name}{suffix}") for suffix in (".pfm", ".png")]
        write_pfm(files[0], values)
        colours = colour_disparity(values, exported["config"]["data"]["max_disparity"])
        Image.fromarray(colours).save(files[1])
        return files


def _read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the left and right file of each line of a CSV, relative to its folder."""
    table = read_table(path)
    if not table.rows or not {*COLUMNS} <= {*table.columns}:
        raise InputError(f"{path} must be a CSV with the columns left and right, and a line for each pair")
    for line, row in table.rows:
        if not (row[LEFT].strip() and row[RIGHT].strip()):
            raise InputError(f"{path}, line {line}: left and right must not be empty")
        left, right = (str(path.parent / row[name].strip()) for name in COLUMNS)
        yield left, right


def colour_disparity(disparity: np.ndarray, maximum: float) -> np.ndarray:
    """Return a picture, uint8 `(H, W, 3)`: from blue for 0 (far) over green to red for `maximum`."""
    fraction = (disparity / maximum).clip(0, 1)
    channels = [np.interp(fraction, STOPS, values) for values in zip(*COLOURS, strict=True)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)
