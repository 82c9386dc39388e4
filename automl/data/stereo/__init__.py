"""Pairs of rectified images with the disparity of the left one: readers, splits, cache and crops.

pfm              Portable float maps, both byte orders
stereo_files     Reads one image or disparity map
pairs            Finds pairs: Scene Flow, KITTI 2012 and 2015, Middlebury, or a CSV
planes           The bundled set: slanted planes and digits, with exact disparities and occlusions
stereo_cache     All pairs of a source in a memory-mapped Arrow file
stereo_dataset   The pairs for the training loop; splits, subsets and manifests
stereo_overview  The summary that `automl data` prints of stereo pairs
"""

from automl.data.stereo.pairs import is_stereo
from automl.data.stereo.stereo_cache import shared_name
from automl.data.stereo.stereo_dataset import StereoPairs, open_pairs

__all__ = ["StereoPairs", "is_stereo", "open_pairs", "shared_name"]
