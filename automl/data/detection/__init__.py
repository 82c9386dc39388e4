"""Images with objects in them: boxes, categories and masks, in COCO's layout.

objects             The objects of an image
masks               Masks: polygons and run lengths
annotations         An annotation file, checked
coco_folder         A folder of COCO's layout: which file is of which split, and where its images are
scenes              The bundled data: digits on a canvas
sizes               Compares the sizes of image files with their annotations
detection_cache     A decoded split, as an Arrow file that every process maps into memory
detection_augment   Scales, crops and mirrors images with their objects
detection_overview  What `automl data` says of a folder of COCO's layout
dataset             A split as the training loop reads it; splits, subsets and manifests
"""

from automl.data.detection.coco_folder import is_coco
from automl.data.detection.dataset import (
    DetectionImages,
    open_detection_records,
    open_split,
    shared_name,
)
from automl.data.detection.objects import Objects

__all__ = [
    "DetectionImages",
    "Objects",
    "is_coco",
    "open_detection_records",
    "open_split",
    "shared_name",
]
