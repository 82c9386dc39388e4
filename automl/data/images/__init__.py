"""Image data: sources, decoded once into memory-mapped caches, read as uint8 batches.

image_sources   The table of image sources, and the lists of their images
folders         Datasets in folders: one folder per class
labels          Images whose labels are in a table, `labels.csv`
tiny_imagenet   Tiny ImageNet: a table of the validation images' classes
doubles         Leaves out images with two labels, counts copies
image_formats   Which files are images, by ending and content
picture         Reads one image file: upright, RGB, 8 bits
decode          Decodes one image to a square of RGB pixels
image_cache     A decoded split, as an Arrow file that every process maps into memory
image_dataset   A split as the training loop reads it; splits, subsets and manifests
feed            Batches on the device: resident where they fit, prefetched where not
image_augment   Random crops and flips of whole batches, on the device
image_overview  What a dataset holds: classes, splits, sizes, what is left out, duplicates
sheet           A sheet of sample images, with what augmentation makes of them
policy          torchvision's policies, erasing and CutMix on whole batches, on the device
"""

from automl.data.images.decode import cache_side, decode
from automl.data.images.image_dataset import (
    Images,
    open_image_records,
    open_split,
    shared_name,
)
from automl.data.images.image_sources import SOURCES, ImageSource
from automl.storage.cache_folder import cache_root

__all__ = [
    "SOURCES",
    "ImageSource",
    "Images",
    "cache_root",
    "cache_side",
    "decode",
    "open_image_records",
    "open_split",
    "shared_name",
]
