"""Images with objects: boxes, categories and masks, in COCO's layout.

masks        Masks: polygons and run lengths
annotations  Reads and checks an annotation file
coco_folder  A folder in COCO's layout: its annotation files, splits and images
augment      Scales, crops and mirrors images with their objects
dataset      A decoded split in a memory-mapped Arrow file; the sources and their summary
"""

from automl.tasks.detection.data.coco_folder import is_coco
from automl.tasks.detection.data.dataset import (
    DetectionImages,
    open_detection_records,
    open_split,
    shared_name,
)
from automl.tasks.detection.data.masks import Objects

__all__ = ["DetectionImages", "Objects", "is_coco", "open_detection_records", "open_split", "shared_name"]
