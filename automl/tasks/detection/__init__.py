"""Detection: boxes and masks of the objects in images.

data    Images with objects: boxes, categories and masks, in COCO's layout
deploy  Deployment of a detector: a graph from images to boxes and masks, and its input and output files
graph   A trained detector as a graph of fixed shapes, for torch.export and ONNX
model   Faster and Mask R-CNN of torchvision over a backbone with stages
score   Average precision of boxes and masks, over the whole split and all workers, by pycocotools
space   Spaces of detection: attention in a backbone and on its feature pyramid
task    Detection: boxes, categories and masks of the objects in images
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from search.config.sections import Data, Model, Training
from search.config.tasks import TaskSpec
from search.metric import Metric

BOX_AP = Metric(name="box_ap", maximize=True, scale=100.0, gap="points")  # COCO's average precision
MASK_AP = Metric(name="mask_ap", maximize=True, scale=100.0, gap="points")
DETECTION = (BOX_AP, MASK_AP)  # the default first


@dataclass(frozen=True, kw_only=True)
class DetectionData(Data):
    """Images with objects.

    Attributes:
        source: `scenes`, or `coco` for a folder in COCO's layout.
        size: The longer side of an image in pixels. Larger images are scaled down to it.
    """

    source: str = "scenes"
    size: int = 96

    def problems(self) -> Iterator[str]:
        if not 64 <= self.size <= 2048:
            yield f"data.size must lie between 64 and 2048 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class DetectionModel(Model):
    """Faster R-CNN on a backbone with a feature pyramid, or Mask R-CNN, which also predicts masks.

    Attributes:
        masks: If True, predict masks if the data have masks.
        channels: The channels of the pyramid and of the mask head.
        representation: The width of the box head.
        anchor: The side of the smallest anchors in pixels. Each level doubles it.
        proposals: The number of proposals in evaluation. Training has twice as many.
        regions: The number of proposals of an image that the heads are trained on.
        detections: The largest number of detections in an image.
        frozen_stages: The number of stages of a pretrained backbone, from the stem on, whose weights are
            frozen.
        frozen_norms: If True, the batch norms of a pretrained backbone are frozen.
        norm: The norm in the pyramid, the box head and the mask head: `group`, with which a detector learns
            sooner from new weights (K. He et al., Rethinking ImageNet Pre-training (2018), arXiv 1811.08883,
            section 3.1), or `none`, as in torchvision, which its published weights fit.
    """

    masks: bool = True
    channels: int = 256
    representation: int = 1024
    anchor: int = 32
    proposals: int = 1000
    regions: int = 512
    detections: int = 100
    frozen_stages: int = 0
    frozen_norms: bool = False
    norm: Literal["none", "group"] = "none"

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        for name in ("channels", "representation", "anchor", "proposals", "regions", "detections"):
            if not 1 <= getattr(self, name) <= 10_000:
                yield f"model.{name} must lie between 1 and 10,000; got {getattr(self, name)}"
        if not 0 <= self.frozen_stages <= 4:
            yield f"model.frozen_stages must lie between 0 and 4; got {self.frozen_stages}"
        if (self.frozen_stages or self.frozen_norms) and not self.weights:
            yield "model.frozen_stages and model.frozen_norms need model.weights; new ones would not learn"


@dataclass(frozen=True, kw_only=True)
class DetectionTraining(Training):
    """Training with the losses of proposals, boxes and masks, each with weight 1.

    Attributes:
        flip: If True, half of the images are mirrored.
        smallest: The smallest random factor that images are scaled by.
        largest: The largest such factor. Images above `data.size` are cropped at random.
    """

    batch_size: int = 16
    flip: bool = True
    smallest: float = 1.0
    largest: float = 1.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0.1 <= self.smallest <= self.largest <= 10:
            yield (
                f"training.smallest and training.largest must lie between 0.1 and 10, in this order; got "
                f"{self.smallest} and {self.largest}"
            )


SPEC = TaskSpec(
    order=40,
    data=DetectionData,
    model=DetectionModel,
    training=DetectionTraining,
    dimensions=2,
    metrics=DETECTION,
    tabled=DETECTION,
    task="automl.tasks.detection.task:Detection",
    spaces=("automl.tasks.detection.space",),
    detect="automl.tasks.detection.data:is_coco",
    nearly="automl.tasks.detection.data.coco_folder:nearly_coco",
    space="coco-da",
    overview="automl.tasks.detection.data.dataset:summarise_detection",
    published="automl.tasks.detection.data.coco_folder:DATASETS",
    subject="automl.tasks.detection.model:subject",
    studies="automl.tasks.detection.space:STUDIES",
    grids="automl.tasks.detection.space:GRIDS",
)

__all__ = ["DETECTION", "SPEC", "DetectionData", "DetectionModel", "DetectionTraining"]
