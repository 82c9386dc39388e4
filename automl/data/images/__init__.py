"""Image data: sources, decoded once into memory-mapped caches, read as uint8 batches."""

from automl.data.images.dataset import (
    Images,
    describe_splits,
    is_shared,
    make_manifest,
    open_split,
    share_splits,
)
from automl.data.images.decode import cache_side, decode
from automl.data.images.sources import SOURCES, Source
from automl.storage.cache import cache_root

__all__ = [
    "SOURCES",
    "Images",
    "Source",
    "cache_root",
    "cache_side",
    "decode",
    "describe_splits",
    "is_shared",
    "make_manifest",
    "open_split",
    "share_splits",
]
