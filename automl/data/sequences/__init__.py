"""Sequences of sensors: read from the field's formats, kept memory-mapped, given as padded batches."""

from automl.data.sequences.dataset import Sequences, describe_splits, make_manifest, open_sequences
from automl.data.sequences.impute import imputed
from automl.data.sequences.normalise import normalise, padding_mask
from automl.data.sequences.sources import SOURCES, Source, is_shared, share
from automl.data.sequences.splits import SPLITS

__all__ = [
    "SOURCES",
    "SPLITS",
    "Sequences",
    "Source",
    "describe_splits",
    "imputed",
    "is_shared",
    "make_manifest",
    "normalise",
    "open_sequences",
    "padding_mask",
    "share",
]
