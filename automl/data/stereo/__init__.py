"""Pairs of rectified images with the disparity of the left one: what is read, split, cached and cropped.

pfm              Portable float maps, both byte orders
stereo_files     One image or disparity map from a file
pairs            Which files are a pair: Scene Flow, KITTI 2012 and 2015, Middlebury, or a CSV
planes           The bundled set: slanted planes and digits in front, with exact disparities and occlusions
stereo_cache     All pairs of a source, as an Arrow file that every process maps into memory
stereo_dataset   The pairs as the training loop reads them; splits, subsets and manifests
stereo_overview  What `automl data` says of stereo pairs
"""

from automl.data.stereo.pairs import is_stereo
from automl.data.stereo.stereo_cache import shared_name
from automl.data.stereo.stereo_dataset import StereoPairs, open_pairs

__all__ = ["StereoPairs", "is_stereo", "open_pairs", "shared_name"]
