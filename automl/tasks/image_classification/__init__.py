"""Classes, labels and numbers of images.

data        Image data: sources, caches of decoded splits, augmentation and batches on the device
equal_time  The comparison of SimpleSelfAttention at equal time
fit         Settings of a search that fit a folder of images
one_block   One residual block more, as a module for a site
reality     The study of published attention modules against the plain model
space       Spaces of images: attention in a backbone, decomposed attention in large ones
study       Published comparisons of classifiers of images
targets     What is learned of an image: its class, several labels, or a number
task        Learning of classes, labels or numbers from images, with mixup and CutMix
vit_space   Spaces of vision transformers: blocks, stem, size and attention
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from search.class_metrics import CLASSIFICATION, LABELS, NUMBERS
from search.config.sections import ClassificationTraining, Data
from search.config.tasks import TaskSpec

Policy = Literal["none", "trivial", "rand"]


@dataclass(frozen=True, kw_only=True)
class ImageData(Data):
    """Images.

    Attributes:
        source: A built-in source, or `folder` for user images.
        size: The side of the square images in pixels.
    """

    source: str = "digits"
    size: int = 32

    def problems(self) -> Iterator[str]:
        # Backbones halve the image five times. Below one position, oneDNN's bfloat16 gradients of a strided
        # convolution are not initialised (torch 2.15).
        if not 24 <= self.size <= 1024:
            yield f"data.size must lie between 24 and 1024 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class ImageTraining(ClassificationTraining):
    """Training on images, with augmentation in addition to crops and mirror images.

    Attributes:
        mixup: Alpha of the beta distribution of mixing weights; 0 is off.
        cutmix: The same for CutMix. If both are on, each batch is mixed by one of the two.
        flip: If True, half of the images are mirrored. None mirrors photographs only.
        policy: Augmentation of colours and shapes: `trivial` for TrivialAugment or `rand` for RandAugment.
        erasing: The probability that a box of an image is erased.
        frozen_norms_below: With fewer training images, the backbone's batch norms keep the statistics of its
            initial weights. Few images estimate them badly.
    """

    mixup: float = 0.0
    cutmix: float = 0.0
    flip: bool | None = None
    policy: Policy = "none"
    erasing: float = 0.0
    frozen_norms_below: int = 0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("mixup", "cutmix"):
            if not (isfinite(value := getattr(self, name)) and value >= 0):
                yield f"training.{name} must be 0 or more; got {value}"
        if not 0 <= self.erasing <= 1:
            yield f"training.erasing must lie between 0 and 1; got {self.erasing}"


SPEC = TaskSpec(
    order=70,
    data=ImageData,
    training=ImageTraining,
    dimensions=2,
    metrics=(*CLASSIFICATION, *LABELS, *NUMBERS),
    drawn=True,
    task="automl.tasks.image_classification.task:ImageClassification",
    spaces=("automl.tasks.image_classification.space", "automl.tasks.image_classification.vit_space"),
    fit="automl.tasks.image_classification.fit:fit",
    overview="automl.tasks.image_classification.data.overview:summarise_folder",
    published="automl.tasks.image_classification.data.dataset:DATASETS",
    subject="automl.task.subject:image_subject",
    studies="automl.tasks.image_classification.study:STUDIES",
    grids="automl.tasks.image_classification.study:GRIDS",
)

__all__ = ["SPEC", "ImageData", "ImageTraining"]
