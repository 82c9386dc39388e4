"""Image data: sources, caches of decoded splits, augmentation and batches on the device.

folders   Datasets in folders: one folder per class, or tables of labels; drops images with two labels
lookup    Drawn pictures whose answer takes two cells: which shape has the colour of the filled one
dataset   A decoded split in a memory-mapped Arrow file; splits, subsets and manifests
feed      Batches on the device, and torchvision's policies, erasing and CutMix there
overview  Summary of a dataset
"""

from automl.data.pictures import cache_side, decode
from automl.tasks.image_classification.data.dataset import (
    SOURCES,
    Images,
    open_image_records,
    open_split,
    shared_name,
)

__all__ = ["SOURCES", "Images", "cache_side", "decode", "open_image_records", "open_split", "shared_name"]
