"""The configuration of one trial: everything that decides what a training computes.

Frozen dataclasses that round-trip through JSON. A task's data, model and training are one file.

parts           What the configurations of all tasks have: data, model and training
classification  Images and sequences
retrieval       Code and its descriptions
stereo          Pairs of images
detection       Images with objects
segmentation    Images with a class for each pixel
opened          The same of a user-defined task whose code has not been loaded
tasks           The declaration of each task (TASKS), and those that are registered
trial           One trial: a task, and its data, model and training
"""

from search.config.classification import (
    ClassificationTraining,
    ClassWeights,
    ImageData,
    ImageTraining,
    Policy,
    SequenceData,
)
from search.config.detection import DetectionData, DetectionModel, DetectionTraining
from search.config.parts import PUBLISHED, Data, Decayed, Model, Optimizer, Schedule, Training
from search.config.retrieval import CodeData, CodeModel, RetrievalLoss, RetrievalTraining, Similarity
from search.config.segmentation import SegmentationData, SegmentationModel, SegmentationTraining
from search.config.stereo import StereoData, StereoModel, StereoTraining
from search.config.tasks import TASKS, TaskSpec
from search.config.trial import TrialConfig

__all__ = [
    "PUBLISHED",
    "TASKS",
    "ClassWeights",
    "ClassificationTraining",
    "CodeData",
    "CodeModel",
    "Data",
    "Decayed",
    "DetectionData",
    "DetectionModel",
    "DetectionTraining",
    "ImageData",
    "ImageTraining",
    "Model",
    "Optimizer",
    "Policy",
    "RetrievalLoss",
    "RetrievalTraining",
    "Schedule",
    "SegmentationData",
    "SegmentationModel",
    "SegmentationTraining",
    "SequenceData",
    "Similarity",
    "StereoData",
    "StereoModel",
    "StereoTraining",
    "TaskSpec",
    "Training",
    "TrialConfig",
]
