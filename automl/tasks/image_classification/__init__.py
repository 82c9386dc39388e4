"""Classification of images.

config      Configuration of the classification of images
data        Image data: sources, caches of decoded splits, augmentation and batches on the device
equal_time  The comparison of SimpleSelfAttention at equal time
fit         Settings of a search that fit a folder of images
space       Spaces of images: attention in a backbone, decomposed attention in large ones
study       Published comparisons of classifiers of images
task        Image classification: cross-entropy with label smoothing, class weights, mixup and CutMix
vit_space   Spaces of vision transformers: blocks, stem, size and attention
"""

from automl.tasks.image_classification.config import ImageData, ImageTraining
from search.class_metrics import CLASSIFICATION
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=70,
    data=ImageData,
    training=ImageTraining,
    dimensions=2,
    metrics=CLASSIFICATION,
    drawn=True,
    task="automl.tasks.image_classification.task:ImageClassification",
    spaces=("automl.tasks.image_classification.space", "automl.tasks.image_classification.vit_space"),
    fit="automl.tasks.image_classification.fit:fit",
    overview="automl.tasks.image_classification.data.overview:summarise_folder",
    published="automl.tasks.image_classification.data.sources:DATASETS",
    subject="automl.task.subject:image_subject",
    studies="automl.tasks.image_classification.study:STUDIES",
    grids="automl.tasks.image_classification.study:GRIDS",
)

__all__ = ["SPEC", "ImageData", "ImageTraining"]
