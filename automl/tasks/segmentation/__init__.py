"""Segmentation: the class of each pixel of an image."""

from automl.tasks.segmentation.config import (
    SEGMENTATION,
    SegmentationData,
    SegmentationModel,
    SegmentationTraining,
)
from search.config.tasks import TaskSpec

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
    subject="automl.tasks.segmentation.model:subject",
)

__all__ = ["SEGMENTATION", "SPEC", "SegmentationData", "SegmentationModel", "SegmentationTraining"]
