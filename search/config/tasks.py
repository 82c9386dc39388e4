"""Which types the configuration of each task has, and its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attention import InputError
from backbones import loading
from search.config.classification import ClassificationTraining, ImageData, ImageTraining, SequenceData
from search.config.detection import DetectionData, DetectionModel, DetectionTraining
from search.config.opened import OpenData, OpenModel, OpenTraining
from search.config.parts import Data, Model, Training
from search.config.retrieval import CodeData, CodeModel, RetrievalTraining
from search.config.stereo import StereoData, StereoModel, StereoTraining
from search.metric import CLASSIFICATION, DETECTION, Metric


@dataclass(frozen=True, kw_only=True)
class TaskConfigs:
    """The types of a task's configuration.

    dimensions: of the inputs of backbones that fit the task; None for a task that makes its own models,
        with a custom `model` type, whose `problems` check its values.
    metrics: from which the primary one may be chosen, the default first; nothing where there is but one.
    """

    data: type[Data]
    training: type[Training]
    dimensions: int | None
    model: type[Model] = Model
    metrics: Sequence[Metric] = ()


# A user-defined task, `file.py:Class`, has such a value as its attribute `configs`.
TASK_CONFIGS: Mapping[str, TaskConfigs] = {
    "image-classification": TaskConfigs(
        data=ImageData, training=ImageTraining, dimensions=2, metrics=CLASSIFICATION
    ),
    "sequence-classification": TaskConfigs(
        data=SequenceData, training=ClassificationTraining, dimensions=1, metrics=CLASSIFICATION
    ),
    "code-retrieval": TaskConfigs(
        data=CodeData, model=CodeModel, training=RetrievalTraining, dimensions=None
    ),
    "stereo": TaskConfigs(data=StereoData, model=StereoModel, training=StereoTraining, dimensions=None),
    "detection": TaskConfigs(
        data=DetectionData, model=DetectionModel, training=DetectionTraining, dimensions=2, metrics=DETECTION
    ),
}

# The types of a user-defined task whose code has not been loaded.
UNLOADED = TaskConfigs(data=OpenData, model=OpenModel, training=OpenTraining, dimensions=None)


def configs_of(task: str) -> TaskConfigs:
    """Return the types of the configuration of `task`, and run no code for that.

    Of a user-defined task whose code has not been loaded, they are types that take any keys.
    Raises InputError when there is no such task.
    """
    if task in TASK_CONFIGS:
        return TASK_CONFIGS[task]
    if not loading.is_user_defined(task):
        return load_configs(task)  # which raises the error
    configs = getattr(loading.loaded_object(task), "configs", None)
    return configs if isinstance(configs, TaskConfigs) else UNLOADED


def load_configs(task: str) -> TaskConfigs:
    """Return the types of the configuration of `task`, loading its code where it is user-defined.

    Raises InputError when there is no such task, or it cannot be loaded.
    """
    if task in TASK_CONFIGS:
        return TASK_CONFIGS[task]
    configs = getattr(loading.load_object("task", "Class", task, TASK_CONFIGS), "configs", None)
    if not isinstance(configs, TaskConfigs):
        raise InputError(f"task {task!r} must have an attribute `configs`, a search.config.TaskConfigs")
    return configs
