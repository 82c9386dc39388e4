"""Classification of images."""

from automl.tasks.image_classification.config import ImageData, ImageTraining
from search.class_metrics import CLASSIFICATION
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=70,
    data=ImageData,
    training=ImageTraining,
    dimensions=2,
    metrics=CLASSIFICATION,
    drawn=True,
    task="automl.tasks.image_classification.task:ImageClassification",
    spaces=(
        "automl.tasks.image_classification.space",
        "automl.tasks.image_classification.decomposed_space",
        "automl.tasks.image_classification.vit_space",
    ),
    fit="automl.tasks.image_classification.fit:fit",
    published="automl.tasks.image_classification.published:DATASETS",
    subject="automl.tasks.subject:image_subject",
    studies="automl.tasks.image_classification.study:STUDIES",
    grids="automl.tasks.image_classification.study:GRIDS",
)

__all__ = ["SPEC", "ImageData", "ImageTraining"]
