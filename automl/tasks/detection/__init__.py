"""Detection: boxes and masks of the objects in images.

config  Configuration of detection
data    Images with objects: boxes, categories and masks, in COCO's layout
deploy  Deployment of a detector: a graph from images to boxes and masks, and its input and output files
graph   A trained detector as a graph of fixed shapes, for torch.export and ONNX
model   Faster and Mask R-CNN of torchvision over a backbone with stages
score   Average precision of boxes and masks, over the whole split and all workers, by pycocotools
space   Spaces of detection: attention in a backbone and on its feature pyramid
study   The published comparisons of decomposed attention in detectors (arXiv 1812.01243)
task    Detection: boxes, categories and masks of the objects in images
"""

from automl.tasks.detection.config import DETECTION, DetectionData, DetectionModel, DetectionTraining
from search.config.tasks import TaskSpec

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
    overview="automl.tasks.detection.data.overview:summarise_detection",
    published="automl.tasks.detection.data.coco_folder:DATASETS",
    subject="automl.tasks.detection.model:subject",
    studies="automl.tasks.detection.study:STUDIES",
    grids="automl.tasks.detection.study:GRIDS",
)

__all__ = ["DETECTION", "SPEC", "DetectionData", "DetectionModel", "DetectionTraining"]
