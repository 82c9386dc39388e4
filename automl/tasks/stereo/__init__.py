"""Stereo: the disparity of each pixel of the left of two rectified images.

config  Configuration of stereo
data    Pairs of rectified images with the disparity of the left one: readers, splits, cache and crops
deploy  Deployment of a stereo model: a graph from two images to disparities, and pairs of input files
model   The models of two rectified images: PSMNet
score   Metrics and loss of disparities, over the pixels of batches and workers
space   Spaces of stereo: attention in PSMNet's backbone, after its pyramid or in its volume; its study
task    Stereo: the disparity of each pixel of the left of two rectified images
"""

from automl.tasks.stereo.config import EPE, StereoData, StereoModel, StereoTraining
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=10,  # before sequences, since both can be a CSV
    data=StereoData,
    model=StereoModel,
    training=StereoTraining,
    metrics=(EPE,),
    task="automl.tasks.stereo.task:Stereo",
    spaces=("automl.tasks.stereo.space",),
    detect="automl.tasks.stereo.data:is_stereo",
    nearly="automl.tasks.stereo.data.pairs:nearly_stereo",
    space="sceneflow",
    overview="automl.tasks.stereo.data.dataset:summarise_stereo",
    published="automl.tasks.stereo.data.pairs:DATASETS",
    models="automl.tasks.stereo.model:STEREO",
    subject="automl.tasks.stereo.model:subject",
    studies="automl.tasks.stereo.space:STUDIES",
    grids="automl.tasks.stereo.space:GRIDS",
)

__all__ = ["EPE", "SPEC", "StereoData", "StereoModel", "StereoTraining"]
