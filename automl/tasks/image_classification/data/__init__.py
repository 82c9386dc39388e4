"""Image data: sources, caches of decoded splits, augmentation and batches on the device.

sources        Table of image sources, and the lists of their images
folders        Datasets in folders: one folder per class
labels         Images with labels in a table, `labels.csv`
tiny_imagenet  Tiny ImageNet: a table of the validation images' classes
doubles        Drops images with two labels, counts copies
cache          A decoded split in a memory-mapped Arrow file
dataset        One split for the training loop; splits, subsets and manifests
feed           Batches on the device: kept there if they fit, prefetched otherwise
overview       Summary of a dataset: classes, splits, sizes, files left out, duplicates
sheet          A sheet of sample images and their augmented versions
policy         torchvision's policies, erasing and CutMix on whole batches, on the device
"""

from automl.data.pictures.picture import cache_side, decode
from automl.tasks.image_classification.data.dataset import (
    Images,
    open_image_records,
    open_split,
    shared_name,
)
from automl.tasks.image_classification.data.sources import SOURCES

__all__ = [
    "SOURCES",
    "Images",
    "cache_side",
    "decode",
    "open_image_records",
    "open_split",
    "shared_name",
]
