"""Image data: sources, decoded once into memory-mapped caches, read as uint8 batches."""

from automl.data.dataset import Images, describe_splits, make_manifest, open_split, share
from automl.data.images import cache_side, decode
from automl.data.sources import SOURCES, Source
from automl.data.store import cache_root

__all__ = [
    "SOURCES",
    "Images",
    "Source",
    "cache_root",
    "cache_side",
    "decode",
    "describe_splits",
    "make_manifest",
    "open_split",
    "share",
]
