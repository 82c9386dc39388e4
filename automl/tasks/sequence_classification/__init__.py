"""Classification of sequences of sensor readings.

data       Sequences of sensor readings: file formats, a memory-mapped cache, padded batches
larnn      LARNN: an LSTM whose cell attends to its own latest states
model      The models of sequences
recurrent  Recurrent networks: their common frame, a stacked LSTM, and residual bidirectional LSTMs
space      Spaces of sensor sequences: the two published searches of LARNN, and attention in a 1-D CNN
task       Classification of sequences of sensor readings
"""

from dataclasses import dataclass

from search.class_metrics import CLASSIFICATION
from search.config.sections import ClassificationTraining, Data
from search.config.tasks import TaskSpec


@dataclass(frozen=True, kw_only=True)
class SequenceData(Data):
    """Sequences of sensor readings. The source `ucihar` is downloaded if no path is set."""

    source: str = "ucihar"


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
    nearly="automl.tasks.sequence_classification.data.formats:nearly_sequences",
    space="sensors",
    overview="automl.tasks.sequence_classification.data.dataset:summarise_sequences",
    published="automl.tasks.sequence_classification.data.ucihar:DATASETS",
    backbones="automl.tasks.sequence_classification.model:BACKBONES",
    subject="automl.tasks.sequence_classification.model:subject",
)

__all__ = ["SPEC", "SequenceData"]
