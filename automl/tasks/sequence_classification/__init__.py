"""Classification of sequences of sensor readings."""

from automl.tasks.sequence_classification.config import SequenceData
from search.class_metrics import CLASSIFICATION
from search.config.classification import ClassificationTraining
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=20,
    data=SequenceData,
    training=ClassificationTraining,
    dimensions=1,
    metrics=CLASSIFICATION,
    drawn=True,
    task="automl.tasks.sequence_classification.task:SequenceClassification",
    spaces=("automl.tasks.sequence_classification.space",),
    detect="automl.tasks.sequence_classification.data:are_sequences",
    nearly="automl.tasks.sequence_classification.data.sources:nearly_sequences",
    space="sensors",
    overview="automl.tasks.sequence_classification.data.overview:summarise_sequences",
    published="automl.tasks.sequence_classification.published:DATASETS",
    backbones="automl.tasks.sequence_classification.model:BACKBONES",
    subject="automl.tasks.sequence_classification.model:subject",
    studies="automl.tasks.sequence_classification.study:STUDIES",
)

__all__ = ["SPEC", "SequenceData"]
