"""Sequences of sensor readings: file formats, a memory-mapped cache, padded batches.

formats    The sources and file formats: opens a dataset, and reads sequences to predict
ts         `.ts` files, the format of the UEA and UCR archives
ucihar     The UCI HAR dataset
long_csv   CSV files in the long format: one row per step
npz        NPZ files of NumPy
reading    What all readers share: numbers in text, their result, and its checks
dataset    A normalised split for the training loop; held-out subjects, manifests, and the summary
"""

from automl.tasks.sequence_classification.data.dataset import (
    SequenceRecords,
    Sequences,
    normalise,
    open_sequence_records,
    open_sequences,
    padding_mask,
)
from automl.tasks.sequence_classification.data.formats import are_sequences, shared_name
from automl.tasks.sequence_classification.data.reading import fill_gaps

__all__ = [
    "SequenceRecords", "Sequences", "are_sequences", "fill_gaps", "normalise", "open_sequence_records",
    "open_sequences", "padding_mask", "shared_name",
]  # fmt: skip
