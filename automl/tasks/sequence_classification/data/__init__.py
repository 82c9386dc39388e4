"""Sequences of sensor readings: file formats, a memory-mapped cache, padded batches.

sources      The table of sources, and the format of a path
formats      The table of file formats, for datasets and for prediction
ts           `.ts` files, the format of the UEA and UCR archives
ucihar       The UCI HAR dataset
long_csv     CSV files in the long format: one row per step
npz          NPZ files of NumPy
number_text  Fast conversion of text to numbers
recording    The result of all readers, and the checks that they share
unlabelled   Reads sequences to predict, without labels
impute       Fills missing values by linear interpolation
splits       Holds out whole subjects for validation and test
normalise    Normalises each channel by the statistics of the training data
cache        A dataset in a memory-mapped Arrow file
overview     The summary that `automl data` prints of sequences
dataset      A split for the training loop; splits, subsets and manifests
"""

from automl.tasks.sequence_classification.data.dataset import (
    SequenceRecords,
    Sequences,
    open_sequence_records,
    open_sequences,
)
from automl.tasks.sequence_classification.data.impute import fill_gaps
from automl.tasks.sequence_classification.data.normalise import normalise, padding_mask
from automl.tasks.sequence_classification.data.sources import are_sequences, shared_name

__all__ = [
    "SequenceRecords",
    "Sequences",
    "are_sequences",
    "fill_gaps",
    "normalise",
    "open_sequence_records",
    "open_sequences",
    "padding_mask",
    "shared_name",
]
