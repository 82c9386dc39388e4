"""Stereo: the disparity of each pixel of the left of two rectified images.

Metrics and loss count the pixels with a known true disparity below the maximum.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.data.augment import normalise
from automl.data.csv_table import read_table
from automl.data.pictures import read_picture
from automl.task.base import EvaluationBatch, RecordTask
from automl.task.deployment import Arrays, Deployment, TaskDeployment, read_usage, spread_indices
from automl.task.evaluator import Evaluator
from automl.task.task_data import Split
from automl.tasks.stereo import SPEC, StereoData, StereoModel, StereoTraining
from automl.tasks.stereo.data import StereoPairs, open_pairs, shared_name
from automl.tasks.stereo.data.pairs import read_views
from automl.tasks.stereo.model import MULTIPLE, STEP, STEREO
from search.config import TrialConfig

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
        Image.fromarray(values.astype(np.float32)).save(files[0])
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


# Weights of the outputs, in order. Only the last output is evaluated.
WEIGHTS = {1: (1.0,), 3: (0.5, 0.7, 1.0)}
METRICS = ("epe", "error_1px", "error_3px", "d1")
D1_PIXELS, D1_SHARE = 3.0, 0.05  # KITTI's: wrong by more than 3 pixels and 5 % of the true disparity


def valid_pixels(truth: Tensor, maximum: int) -> Tensor:
    """Return the pixels that are counted, bool. Unknown disparities are infinite."""
    return (truth >= 0) & (truth < maximum)


def disparity_loss(outputs: Sequence[Tensor], truth: Tensor, maximum: int, runtime: Runtime) -> Tensor:
    """Return the weighted sum of the mean smooth L1 losses of the outputs, each `(B, H, W)`, a scalar.

    The mean is over the counted pixels of all workers, so that the mean of their gradients is that of the
    whole batch.
    """
    is_valid = valid_pixels(truth, maximum)
    truth = truth.where(is_valid, 0.0)
    count = runtime.total(is_valid.sum().to(truth.dtype)) / runtime.workers
    losses = [
        F.smooth_l1_loss(output.where(is_valid, 0.0), truth, reduction="sum") / count.clamp(min=1)
        for output in outputs
    ]
    return torch.stack([w * loss for w, loss in zip(WEIGHTS[len(losses)], losses, strict=True)]).sum()


class StereoEvaluator(Evaluator):
    """Evaluator of disparities.

    `epe` is the mean error of disparities in pixels. `error_1px`, `error_3px` and `d1` are fractions of wrong
    pixels: with an error above 1 pixel, above 3 pixels, or (KITTI's d1) above 3 pixels and 5 %. All are over
    the counted pixels of the whole split.
    """

    def __init__(self, maximum: int, device: torch.device) -> None:
        self.maximum = maximum
        self.sums = torch.zeros(1 + len(METRICS), dtype=torch.float64, device=device)

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Add disparities `(B, H, W)`, at least as large as the true disparities `(B, h, w)`."""
        height, width = targets.shape[1:]
        truth = targets[is_valid := valid_pixels(targets, self.maximum)].double()
        errors = (outputs[:, :height, :width][is_valid].double() - truth).abs()
        d1 = (errors > D1_PIXELS) & (errors > D1_SHARE * truth)
        terms = [torch.ones_like(errors), errors, (errors > 1).double(), (errors > 3).double(), d1.double()]
        self.sums += torch.stack([term.sum() for term in terms])

    def compute(self, runtime: Runtime) -> dict[str, Tensor]:
        count, *sums = runtime.total(self.sums.clone())
        return {name: total / count for name, total in zip(METRICS, sums, strict=True)}


class Stereo(StereoDeployment, RecordTask[StereoData, StereoModel, StereoTraining]):
    """Estimation of disparities.

    Its metrics are those of `StereoEvaluator`, the primary one `epe`: lower is better. Training uses random
    crops, the same of both images. Validation and test use whole pairs, padded at the bottom and the right to
    sizes that the model takes.
    """

    spec = SPEC
    noun = "stereo pairs"

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        super().__init__(config, runtime)
        self.options = {**STEREO[self.chosen.backbone].options, **self.chosen.options}
        self.least = STEP * self.options["pool"]  # smallest side in pixels, one window of the pyramid
        for name in ("height", "width"):
            if (value := getattr(self.data, name)) < self.least:
                raise InputError(
                    f"data.{name} must be {self.least} pixels or more, the largest window of pool "
                    f"{self.options['pool']}; got {value}"
                )
        self.pairs = self.records(config)
        self.batch_size = self.shared_batch_size()

    def size(self, split: Split) -> int:
        return len(self.pairs.rows(split))

    @classmethod
    def records(cls, config: TrialConfig) -> StereoPairs:
        return open_pairs(cls.data_of(config))

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        return shared_name(cls.data_of(config))

    def model(self) -> nn.Module:
        data, example = self.data, tuple(image.cpu() for image in self.example(2))
        return self.placed(self._plain, lambda: example, data.height, data.width, data.max_disparity)

    def _plain(self) -> nn.Module:
        build = STEREO[self.chosen.backbone].build
        return build(max_disparity=self.data.max_disparity, **self.chosen.options)

    def batches(self, epoch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield `(left, right, disparity)`: normalised images, and disparities float32 `(B, H, W)`.

        All workers draw the same order and crops, and each computes its own pairs.
        """
        rows, data = self.pairs.rows("train"), self.data
        generator = np.random.default_rng([self.config.seed, epoch])
        order = generator.permutation(len(rows))[: self.steps() * self.batch_size]
        positions = generator.random((len(order), 2))
        for indices in np.arange(len(order)).reshape(-1, self.batch_size):
            own = self.runtime.shard(torch.from_numpy(indices)).numpy()
            yield self._batch(
                [
                    self.pairs.crop(int(rows[order[i]]), tuple(positions[i]), data.height, data.width)
                    for i in own
                ]
            )

    def _batch(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a batch of pairs of one size, on the device."""
        device = self.runtime.device
        left, right, disparity = (
            torch.from_numpy(np.stack(arrays)).to(device) for arrays in zip(*pairs, strict=True)
        )
        return normalise(left), normalise(right), disparity

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        image = torch.zeros(count, 3, self.data.height, self.data.width, device=self.runtime.device)
        return image, image.clone()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        left, right, truth = batch
        output = model(left, right)
        outputs = [output] if isinstance(output, Tensor) else output
        with torch.autocast(self.runtime.device.type, enabled=False):
            return disparity_loss(
                [output.float() for output in outputs], truth, self.data.max_disparity, self.runtime
            )

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        """Yield consecutive pairs of one size, as many at once as have the pixels of a training batch."""
        rows = self.pairs.rows(split)
        shapes = self.pairs.file.shapes[rows].tolist()
        crop = self.batch_size * self.data.height * self.data.width
        own = self.runtime.shard(torch.arange(len(rows)))
        for shape, group in groupby(own.tolist(), key=lambda i: shapes[i]):
            for index in torch.tensor(list(group)).split(max(1, crop // (shape[0] * shape[1]))):
                left, right, truth = self._batch([self.pairs.pair(int(rows[i])) for i in index])
                yield EvaluationBatch(index, (self._padded(left), self._padded(right)), truth)

    def _padded(self, images: Tensor) -> Tensor:
        height, width = (self.padded(side) for side in images.shape[2:])
        return F.pad(images, (0, width - images.shape[3], 0, height - images.shape[2]))

    def padded(self, side: int) -> int:
        """Return the smallest side of at least `side` pixels that the model takes."""
        return max(int(self.least), -(-side // MULTIPLE) * MULTIPLE)

    def evaluator(self, split: Split) -> StereoEvaluator:
        return StereoEvaluator(self.data.max_disparity, self.runtime.device)

    def _deployed(self) -> tuple[int, int]:
        """Return height and width of the deployed graph, which hold all training pairs."""
        largest = self.pairs.file.shapes[self.pairs.rows("train")].max(0).tolist()
        return self.padded(largest[0]), self.padded(largest[1])

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the graph from two images, bytes `(N, H, W, 3)`, to disparities `(N, H, W)`."""
        height, width = self._deployed()
        image = torch.zeros(2, height, width, 3, dtype=torch.uint8, device=self.runtime.device)
        return Deployment(
            module=Disparities(model),
            inputs={LEFT: image, RIGHT: image.clone()},
            outputs=[OUTPUT],
            details={"height": height, "width": width},
        )

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Return pairs that fit the graph."""
        rows, (height, width) = self.pairs.rows(split), self._deployed()
        rows = rows[(self.pairs.file.shapes[rows] <= (height, width)).all(1)]
        if not len(rows):
            raise InputError(f"no pair of the {split} split has {width} x {height} pixels or less")
        batches: dict[str, list[np.ndarray]] = {LEFT: [], RIGHT: []}
        for row in rows[spread_indices(len(rows), count).numpy()].tolist():
            for images, image in zip(batches.values(), self.pairs.file.images(row), strict=True):
                images.append(pad_image(image, height, width, self.pairs.file.names[row]))
        device = self.runtime.device
        return {name: torch.from_numpy(np.concatenate(images)).to(device) for name, images in batches.items()}

    def usage(self) -> str:
        height, width = self._deployed()
        return read_usage(__file__).format(height=height, width=width, maximum=self.data.max_disparity - 1)

    def request(self) -> str:
        height, width = self._deployed()
        return REQUEST.format(height=height, width=width)
