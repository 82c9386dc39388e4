"""Detection: boxes and masks of the objects in images."""

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
    published="automl.tasks.detection.published:DATASETS",
    subject="automl.tasks.detection.model:subject",
    studies="automl.tasks.detection.study:STUDIES",
    grids="automl.tasks.detection.study:GRIDS",
)

__all__ = ["DETECTION", "SPEC", "DetectionData", "DetectionModel", "DetectionTraining"]
