"""Segmentation: the class of each pixel of an image.

data    Images with a class for each pixel: a folder, or bundled scenes of digits
model   A U-Net over a backbone of images with several resolutions, with sites on its skip connections
space   The space of segmentation: attention in a U-Net
task    Semantic segmentation: the class of each pixel of an image
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search.config.sections import Data, Model, Training
from search.config.tasks import TaskSpec
from search.metric import Metric

if TYPE_CHECKING:
    from torch import nn


MIOU = Metric(name="miou", maximize=True, scale=100.0, unit="%", gap="points")  # intersection over union
PIXEL_ACCURACY = Metric(name="pixel_accuracy", maximize=True, scale=100.0, unit="%", gap="points")
DICE = Metric(name="dice", maximize=True, scale=100.0, unit="%", gap="points")
SEGMENTATION = (MIOU, PIXEL_ACCURACY, DICE)  # the default first


@dataclass(frozen=True, kw_only=True)
class SegmentationData(Data):
    """Images with a class for each pixel: the bundled source `digit-scenes`, or a folder.

    Attributes:
        size: The side of the squares in pixels that images are scaled to.
        ignore_index: The label of pixels that are not counted. 255 is never counted.
    """

    source: str = "digit-scenes"
    size: int = 96
    ignore_index: int = 255

    def problems(self) -> Iterator[str]:
        if not 64 <= self.size <= 2048 or self.size % 32:
            yield f"data.size must be a multiple of 32 from 64 to 2048 pixels; got {self.size}"
        if not 0 <= self.ignore_index <= 255:
            yield f"data.ignore_index must lie between 0 and 255; got {self.ignore_index}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class SegmentationModel(Model):
    """A U-Net on the backbone, or a model of segmentation_models_pytorch such as `smp:Unet`."""

    def build(self, *, classes: int, in_channels: int = 3, size: int | None = None) -> "nn.Module":
        from automl.tasks.segmentation.model import UNet  # importing torch takes seconds

        body = super().build(classes=classes, in_channels=in_channels, size=size)
        return body if self.backbone.startswith("smp:") else UNet(body, classes=classes, size=size or 128)


@dataclass(frozen=True, kw_only=True)
class SegmentationTraining(Training):
    """Training with cross-entropy plus Dice loss.

    Attributes:
        flip: If True, half of the images are mirrored.
        crop: The smallest fraction of an image's area that a random crop keeps.
    """

    batch_size: int = 16
    flip: bool = True
    crop: float = 0.5

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 < self.crop <= 1:
            yield f"training.crop must be above 0 and at most 1; got {self.crop}"


SPEC = TaskSpec(
    order=50,
    data=SegmentationData,
    model=SegmentationModel,
    training=SegmentationTraining,
    dimensions=2,
    metrics=SEGMENTATION,
    task="automl.tasks.segmentation.task:Segmentation",
    spaces=("automl.tasks.segmentation.space",),
    detect="automl.tasks.segmentation.data:is_segmentation",
    nearly="automl.tasks.segmentation.data:nearly_segmentation",
    space="unet",
    subject="automl.tasks.segmentation.task:subject",
)

__all__ = ["SEGMENTATION", "SPEC", "SegmentationData", "SegmentationModel", "SegmentationTraining"]
