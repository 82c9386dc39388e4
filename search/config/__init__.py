"""Configuration of one trial: everything that determines what a training computes.

Frozen dataclasses that round-trip through JSON. Each task has its data, model and training in one file.

sections               Base classes of all tasks: data, model and training
classification_config  Images and sequences
retrieval_config       Code and its descriptions
language_config        Texts, and sequences of associative recall
stereo_config          Pairs of images
detection_config       Images with objects
segmentation_config    Images with a class for each pixel
own_training_config    A training by the user's own code: a function, or a command
command_config         A training that is any command
opened                 Configuration of a user-defined task whose code has not been loaded
tasks                  Declarations of the built-in tasks (TASKS) and the registered ones
trial_config           One trial: a task with its data, model and training
"""

from search.config.classification_config import (
    ClassificationTraining,
    ClassWeights,
    ImageData,
    ImageTraining,
    SequenceData,
)
from search.config.command_config import COMMAND, CommandModel, CommandTraining
from search.config.detection_config import DetectionData, DetectionModel, DetectionTraining
from search.config.language_config import LanguageData, LanguageModel, LanguageTraining
from search.config.own_training_config import FunctionModel, OwnTraining
from search.config.retrieval_config import CodeData, CodeModel, RetrievalTraining, Similarity
from search.config.sections import PUBLISHED, Data, Model, Optimizer, Schedule, Training
from search.config.segmentation_config import SegmentationData, SegmentationModel, SegmentationTraining
from search.config.stereo_config import StereoData, StereoModel, StereoTraining
from search.config.tasks import TASKS, TaskSpec
from search.config.trial_config import TrialConfig

__all__ = [
    "COMMAND",
    "PUBLISHED",
    "TASKS",
    "ClassWeights",
    "ClassificationTraining",
    "CodeData",
    "CodeModel",
    "CommandModel",
    "CommandTraining",
    "Data",
    "DetectionData",
    "DetectionModel",
    "DetectionTraining",
    "FunctionModel",
    "ImageData",
    "ImageTraining",
    "LanguageData",
    "LanguageModel",
    "LanguageTraining",
    "Model",
    "Optimizer",
    "OwnTraining",
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
