"""Image data: sources, caches of decoded splits, augmentation and batches on the device.

image_sources   Table of image sources, and the lists of their images
folders         Datasets in folders: one folder per class
labels          Images with labels in a table, `labels.csv`
tiny_imagenet   Tiny ImageNet: a table of the validation images' classes
doubles         Drops images with two labels, counts copies
image_formats   Recognises image files by suffix and content
picture         Reads one image file: upright, RGB, 8 bits
decode          Decodes one image to a square of RGB pixels
image_cache     A decoded split in a memory-mapped Arrow file
image_dataset   One split for the training loop; splits, subsets and manifests
feed            Batches on the device: kept there if they fit, prefetched otherwise
image_augment   Random crops and flips of whole batches, on the device
image_overview  Summary of a dataset: classes, splits, sizes, files left out, duplicates
sheet           A sheet of sample images and their augmented versions
policy          torchvision's policies, erasing and CutMix on whole batches, on the device
"""

from automl.data.images.decode import cache_side, decode
from automl.data.images.image_dataset import (
    Images,
    open_image_records,
    open_split,
    shared_name,
)
from automl.data.images.image_sources import SOURCES

__all__ = [
    "SOURCES",
    "Images",
    "cache_side",
    "decode",
    "open_image_records",
    "open_split",
    "shared_name",
]
