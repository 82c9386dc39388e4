"""Declarations of tasks, built in (TASKS) or registered: everything known of a task before a training."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from automl.base import loading
from automl.base.errors import InputError
from search.class_metrics import CLASSIFICATION
from search.config.classification_config import ClassificationTraining, ImageData, ImageTraining, SequenceData
from search.config.command_config import COMMAND, CommandModel, CommandTraining
from search.config.detection_config import DetectionData, DetectionModel, DetectionTraining
from search.config.language_config import LanguageData, LanguageModel, LanguageTraining
from search.config.opened import OpenData, OpenModel, OpenTraining
from search.config.own_training_config import FunctionModel, OwnTraining
from search.config.retrieval_config import CodeData, CodeModel, RetrievalTraining
from search.config.sections import Data, Model, Training
from search.config.segmentation_config import SegmentationData, SegmentationModel, SegmentationTraining
from search.config.stereo_config import StereoData, StereoModel, StereoTraining
from search.metric import DETECTION, EPE, LANGUAGE, MRR, SEGMENTATION, Metric

GROUP = (
    "automl.tasks"  # group of entry points; each has a name and the reference of a subclass of `automl.Task`
)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Declaration of a task: everything that the command line and a search need before a training begins.

    A reference is `package.module:name`. It is imported when it is needed, so that a process of one task does
    not import the others.

    Attributes:
        data: The type of `TrialConfig.data`.
        training: The type of `TrialConfig.training`.
        metrics: The metrics that trials can be compared by, the default first. Empty if the user's code
            reports one of its own, the configuration's `training.reports`.
        model: The type of `TrialConfig.model`. A type of your own checks its values in `problems`.
        dimensions: The spatial dimensions of inputs. None for a task that builds its own models.
        task: The reference of the `Task` subclass. Empty in the `spec` of a user-defined subclass, and for
            commands, whose data and models are not known.
        spaces: Modules with search spaces of the task, each in a sequence `SPACES`.
        detect: The reference of a function of a path, which returns True if the path holds data of the task.
        space: The name of the space for data that `detect` recognises.
        overview: The reference of a function of a path. It returns a dataclass for `automl data --json` with
            `lines()` to print. By default the splits are listed.
        subject: The reference of the function that builds a model for `automl cost`.

    Example:
        >>> import automl
        >>> from search.config import Data, Training
        >>> error = automl.Metric(name="rmse", maximize=False, unit="kg", margin=0.02)
        >>> spec = automl.TaskSpec(data=Data, training=Training, metrics=[error])
        >>> spec.metric("").name
        'rmse'
    """

    data: type[Data]
    training: type[Training]
    metrics: Sequence[Metric]
    model: type[Model] = Model
    dimensions: int | None = None
    task: str = ""
    spaces: Sequence[str] = ()
    detect: str = ""
    space: str = ""
    overview: str = ""
    subject: str = ""

    def metric(self, name: str) -> Metric:
        """Return the metric of this name.

        Args:
            name: The name. Empty for the default metric.

        Returns:
            The metric.
        """
        return next(metric for metric in self.metrics if name in ("", metric.name))

    def detects(self, path: str) -> bool:
        """Return True if `path` holds data of the task.

        Args:
            path: The path of the data.

        Returns:
            The result of the function `detect`, or False without one.
        """
        return bool(self.detect) and bool(resolve(self.detect)(path))


# Data are recognised in this order. Data that no other task recognises are a folder of images.
TASKS: Mapping[str, TaskSpec] = {
    "stereo": TaskSpec(  # before sequences, since both can be a CSV
        data=StereoData,
        model=StereoModel,
        training=StereoTraining,
        metrics=(EPE,),
        task="automl.tasks.stereo:Stereo",
        spaces=("search.stereo_spaces",),
        detect="automl.data.stereo:is_stereo",
        space="sceneflow",
        overview="automl.data.stereo.stereo_overview:summarise_stereo",
        subject="automl.costs.subject:stereo_subject",
    ),
    "sequence-classification": TaskSpec(
        data=SequenceData,
        training=ClassificationTraining,
        dimensions=1,
        metrics=CLASSIFICATION,
        task="automl.tasks.sequence_classification:SequenceClassification",
        spaces=("search.sensor_spaces",),
        detect="automl.data.sequences:are_sequences",
        space="sensors",
        overview="automl.data.sequences.sequence_overview:summarise_sequences",
        subject="automl.costs.subject:sequence_subject",
    ),
    "code-retrieval": TaskSpec(
        data=CodeData,
        model=CodeModel,
        training=RetrievalTraining,
        metrics=(MRR,),
        task="automl.tasks.code_retrieval:CodeRetrieval",
        spaces=("search.code_spaces",),
        detect="automl.data.code:is_code",
        space="codesearch",
        overview="automl.data.code.code_overview:summarise_code",
        subject="automl.costs.subject:encoder_subject",
    ),
    "detection": TaskSpec(
        data=DetectionData,
        model=DetectionModel,
        training=DetectionTraining,
        dimensions=2,
        metrics=DETECTION,
        task="automl.tasks.detection:Detection",
        spaces=("search.detection_spaces",),
        detect="automl.data.detection:is_coco",
        space="coco-da",
        overview="automl.data.detection.detection_overview:summarise_detection",
        subject="automl.costs.subject:detector_subject",
    ),
    "segmentation": TaskSpec(
        data=SegmentationData,
        model=SegmentationModel,
        training=SegmentationTraining,
        dimensions=2,
        metrics=SEGMENTATION,
        task="automl.tasks.segmentation:Segmentation",
        spaces=("search.segmentation_spaces",),
        detect="automl.data.segmentation_data:is_segmentation",
        space="unet",
        subject="automl.costs.subject:segmenter_subject",
    ),
    "language-modelling": TaskSpec(
        data=LanguageData,
        model=LanguageModel,
        training=LanguageTraining,
        metrics=LANGUAGE,
        task="automl.tasks.language_modelling:LanguageModelling",
        spaces=("search.language_spaces",),
        detect="automl.data.text:is_text",
        space="hybrid",
        overview="automl.data.text.text_overview:summarise_text",
        subject="automl.costs.subject:decoder_subject",
    ),
    "image-classification": TaskSpec(
        data=ImageData,
        training=ImageTraining,
        dimensions=2,
        metrics=CLASSIFICATION,
        task="automl.tasks.image_classification:ImageClassification",
        spaces=("search.image_spaces", "search.decomposed_spaces", "search.vit_spaces"),
        subject="automl.costs.subject:image_subject",
    ),
    "function": TaskSpec(
        data=Data,
        model=FunctionModel,
        training=OwnTraining,
        metrics=(),
        task="automl.tasks.function:FunctionTask",
    ),
    COMMAND: TaskSpec(data=Data, model=CommandModel, training=CommandTraining, metrics=()),
}

# Declaration of a user-defined task whose code has not been loaded.
UNLOADED = TaskSpec(data=OpenData, model=OpenModel, training=OpenTraining, metrics=())

# Words in the names of metrics for which no direction is assumed.
LOWER_IS_BETTER = frozenset(("loss", "losses", "error", "errors", "rmse", "mae", "mse", "perplexity"))

_registered: dict[str, str] = {}


def declare_metric(
    name: str, *, minimize: bool | None = None, margin: float | None = None, unit: str | None = None
) -> Metric:
    """Return the metric that the user's own code reports.

    A name of a built-in metric, such as `accuracy`, brings its direction, scale, unit and margin.

    Args:
        name: The name.
        minimize: True if lower values are better, False if higher ones are. By default higher ones, but a
            name such as `val_loss` needs a direction.
        margin: The smallest difference that matters, in the unit of a difference.
        unit: The unit.

    Returns:
        The metric.

    Raises:
        InputError: The direction is missing, or contradicts that of the built-in metric.
    """
    known = {metric.name: metric for spec in TASKS.values() for metric in spec.metrics}
    own = Metric(name=name, maximize=not minimize, margin=0)
    metric = known.get(name, own)
    if minimize is metric.maximize:
        better, option = ("lower", "--maximize") if not metric.maximize else ("higher", "--minimize")
        raise InputError(f"a {better} {name} is better; leave {option} out, or give the metric another name")
    words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}
    if minimize is None and metric is own and words & LOWER_IS_BETTER:
        raise InputError(f"add --minimize for {name}, or --maximize if a higher value is better")
    metric = metric.declaration
    if unit is not None:
        metric = replace(metric, unit=unit, gap=unit, scale=1.0)
    return metric if margin is None else replace(metric, margin=margin)


def resolve(reference: str) -> Any:
    """Import the object that `package.module:name` refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


@cache
def _installed() -> Mapping[str, str]:
    """Return the tasks of installed packages by their entry points, without importing them."""
    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


def register(name: str, reference: str) -> str:
    """Register a name for a task in this process. Return the reference that other processes resolve."""
    _registered[name] = loading.make_absolute(reference)
    return _registered[name]


def resolve_name(task: str) -> str:
    """Return the reference of a registered task, or `task` itself with absolute paths."""
    if task in TASKS:
        return task
    return loading.make_absolute(_registered.get(task) or _installed().get(task, task))


def find_spec(task: str) -> TaskSpec:
    """Return the declaration of a task without running its code.

    Returns UNLOADED for a user-defined task whose code has not been loaded. Raises InputError if the task is
    unknown.
    """
    if task in TASKS:
        return TASKS[task]
    if not loading.is_user_defined(task):
        return load_spec(task)  # raises the error
    spec = getattr(loading.get_loaded_object(task), "spec", None)
    return spec if isinstance(spec, TaskSpec) else UNLOADED


def load_spec(task: str) -> TaskSpec:
    """Return the declaration of a task, and load its code if it is user-defined.

    Raises InputError if the task is unknown or cannot be loaded.
    """
    if task in TASKS:
        return TASKS[task]
    known = [*TASKS, *_registered, *_installed()]
    spec = getattr(loading.load_object("task", "Class", task, known), "spec", None)
    if not isinstance(spec, TaskSpec) or not spec.metrics:
        raise InputError(f"task {task!r} must have an attribute `spec`, an automl.TaskSpec with metrics")
    return spec


def registered_specs() -> Iterator[tuple[str, TaskSpec]]:
    """Yield the name and the declaration of each registered task, except those that cannot be loaded."""
    for name in {**_installed(), **_registered}:
        try:
            yield name, load_spec(resolve_name(name))
        except InputError as error:
            print(f"skipped task {name!r}: {error}", file=sys.stderr)
