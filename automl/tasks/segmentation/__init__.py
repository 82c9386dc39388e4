"""Segmentation: the class of each pixel of an image.

config  Configuration of segmentation
data    Images with a class for each pixel: a folder, or bundled scenes of digits
model   A U-Net over a backbone of images with several resolutions, with sites on its skip connections
score   Metrics and loss of segmentation from the logits of pixels, over batches and workers
space   The space of segmentation: attention in a U-Net
task    Semantic segmentation: the class of each pixel of an image
"""

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
    subject="automl.tasks.segmentation.task:subject",
)

__all__ = ["SEGMENTATION", "SPEC", "SegmentationData", "SegmentationModel", "SegmentationTraining"]
