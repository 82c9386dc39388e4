"""Stereo: the disparity of each pixel of the left of two rectified images.

data    Pairs of rectified images with the disparity of the left one: readers, splits, cache and crops
model   The models of two rectified images: PSMNet
space   Spaces of stereo: attention in PSMNet's backbone, after its pyramid or in its volume; its study
task    Stereo: the disparity of each pixel of the left of two rectified images
"""

from collections.abc import Iterator
from dataclasses import dataclass

from automl.base.errors import InputError
from search.config.sections import Data, Model, Schedule, Training
from search.config.tasks import TaskSpec
from search.metric import Metric

EPE = Metric(name="epe", maximize=False, unit="px", margin=0.02)  # the end-point error of disparities


@dataclass(frozen=True, kw_only=True)
class StereoData(Data):
    """Rectified pairs of images with disparities.

    Attributes:
        source: `planes`, or `pairs` for a path.
        height: The height of training crops in pixels.
        width: Their width.
        max_disparity: Pixels with a disparity of this or more are not counted.
    """

    source: str = "planes"
    height: int = 64
    width: int = 128
    max_disparity: int = 48

    def problems(self) -> Iterator[str]:
        for name in ("height", "width", "max_disparity"):
            value, least = getattr(self, name), 16 if name == "max_disparity" else 32
            if not least <= value <= 4096 or value % 16:
                yield f"data.{name} must be a multiple of 16 from {least} to 4096; got {value}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class StereoModel(Model):
    """A model of two rectified images, one of `STEREO` in `model`."""

    backbone: str = "psmnet"

    def problems(self) -> Iterator[str]:
        from automl.tasks.stereo.model import check_stereo  # imports torch, which takes seconds

        try:
            check_stereo(self.backbone, self.options)
        except InputError as error:
            yield str(error)
        if self.weights:
            yield f"model.weights: stereo models start from new weights; got {self.weights!r}"


@dataclass(frozen=True, kw_only=True)
class StereoTraining(Training):
    """Training with the smooth L1 loss of disparities. Defaults are those of PSMNet on Scene Flow."""

    epochs: int = 10
    batch_size: int = 12
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Schedule = "flat-cosine"


SPEC = TaskSpec(
    order=10,  # before sequences, since both can be a CSV
    data=StereoData,
    model=StereoModel,
    training=StereoTraining,
    metrics=(EPE,),
    task="automl.tasks.stereo.task:Stereo",
    spaces=("automl.tasks.stereo.space",),
    detect="automl.tasks.stereo.data:is_stereo",
    nearly="automl.tasks.stereo.data.pairs:nearly_stereo",
    space="sceneflow",
    overview="automl.tasks.stereo.data.dataset:summarise_stereo",
    published="automl.tasks.stereo.data.pairs:DATASETS",
    models="automl.tasks.stereo.model:STEREO",
    subject="automl.tasks.stereo.model:subject",
    studies="automl.tasks.stereo.space:STUDIES",
    grids="automl.tasks.stereo.space:GRIDS",
)

__all__ = ["EPE", "SPEC", "StereoData", "StereoModel", "StereoTraining"]
