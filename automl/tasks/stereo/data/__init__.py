"""Pairs of rectified images with the disparity of the left one: readers, splits, cache and crops.

pfm       Portable float maps, both byte orders
files     Reads one image or disparity map
pairs     Finds pairs: Scene Flow, KITTI 2012 and 2015, Middlebury, or a CSV
planes    The bundled set: slanted planes and digits, with exact disparities and occlusions
cache     All pairs of a source in a memory-mapped Arrow file
dataset   The pairs for the training loop; splits, subsets and manifests
overview  The summary that `automl data` prints of stereo pairs
"""

from automl.tasks.stereo.data.dataset import StereoPairs, open_pairs, shared_name
from automl.tasks.stereo.data.pairs import is_stereo

__all__ = ["StereoPairs", "is_stereo", "open_pairs", "shared_name"]
