"""Pairs of rectified images with the disparity of the left one: readers, splits, cache and crops.

pairs     Finds and reads pairs: Scene Flow, KITTI 2012 and 2015, Middlebury, or a CSV
planes    The bundled set: slanted planes and digits, with exact disparities and occlusions
dataset   All pairs in a memory-mapped Arrow file; splits, crops, manifests and an overview
"""

from automl.tasks.stereo.data.dataset import StereoPairs, open_pairs, shared_name
from automl.tasks.stereo.data.pairs import is_stereo

__all__ = ["StereoPairs", "is_stereo", "open_pairs", "shared_name"]
