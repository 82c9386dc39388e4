"""Tasks: what can be learned.

base                     The base class `Task`
evaluator                From a model's outputs to metrics, over batches and workers
classification           What tasks of classes share: loss, metrics, inputs of each class
cross_entropy            The loss of classifiers: label smoothing, class weights, mixed inputs
code_deployment          What is deployed of the two encoders of code search
deployment               What is deployed of a trained model: module, named inputs and outputs
initial                  The weights that trainings start from: published, of a file, or of a trained trial
memo                     What is found out about a model once in a process
model_check              Tries a model before it is trained, and chooses its memory format
image_classification     Classification of images
sequence_classification  Classification of sequences of sensor readings
code_retrieval           Search in code: functions by their docstrings
retrieval_evaluator      From vectors of queries and code to mean reciprocal ranks
retrieval_metrics        Ranks, and what is made of them: MRR, recall, NDCG
stereo                   The disparity of each pixel of the left of two rectified images
stereo_evaluator         From disparities to end-point error and shares of wrong pixels
stereo_deployment        What is deployed of a stereo model, and what it makes of files
detection                Boxes and masks of the objects in images
detection_evaluator      From boxes and masks to average precision
detection_deployment     What is deployed of a detector, and what it makes of files
segmentation             The class of each pixel of an image
segmentation_evaluator   From logits of pixels to intersection over union, and the loss
same_data                Checks whether a search's data have changed since it was made

A built-in task is declared by one entry in `search.config.tasks.TASKS`. A task of a package is named by an
entry point of the group `automl.tasks`, and any other by `register_task`, or in place as `file.py:Class`.
"""

from attention import InputError
from automl.config.runtime import Runtime
from automl.tasks.base import Batch, EvaluationBatch, Inputs, Split, Task
from backbones.loading import load_object
from search.config import TASKS, TrialConfig
from search.config.tasks import TaskSpec, load_spec, register, registered_specs, resolve


def register_task(name: str, task: str | type[Task]) -> str:
    """Make a task available by name: to configurations, `--data` and `--space` of this process.

    A package does that for every process by an entry point of the group `automl.tasks`. A configuration has
    the reference of the task in place of the name, so that other machines need no registration.

    Args:
        name: The name. It must not be that of a built-in task.
        task: The class, or its reference `file.py:Class` or `package.module:Class`.

    Returns:
        The reference.

    Raises:
        InputError: The name is taken, or the class cannot be loaded or has no `spec`.

    Example:
        >>> import automl
        >>> automl.register_task("photos", "automl.tasks.image_classification:ImageClassification")
        'automl.tasks.image_classification:ImageClassification'
        >>> automl.TrialConfig(task="photos").task
        'automl.tasks.image_classification:ImageClassification'
    """
    if name in TASKS or ":" in name or not name:
        raise InputError(f"a task must have a name without colons that no built-in task has; got {name!r}")
    reference = task if isinstance(task, str) else f"{task.__module__}:{task.__qualname__}"
    load_spec(reference)
    return register(name, reference)


def task_of_data(path: str) -> TaskSpec | None:
    """Return the declaration of the task that recognises the data at `path`; None for images of classes.

    Registered tasks are asked first. Raises InputError for an archive that cannot be extracted.
    """
    specs = [*(spec for _, spec in registered_specs()), *TASKS.values()]
    return next((spec for spec in specs if spec.detects(path)), None)


def task_of(config: TrialConfig) -> type[Task]:
    """Return the class of the task that `config` names, loading its code where it is user-defined.

    Raises InputError for an unknown one.
    """
    loaded: object
    if config.task in TASKS:
        loaded = resolve(TASKS[config.task].task)
    else:
        loaded = load_object("task", "Class", config.task, TASKS)
    if not (isinstance(loaded, type) and issubclass(loaded, Task)):
        raise InputError(f"task {config.task!r} must be a subclass of automl.Task; got {loaded!r}")
    return loaded


def open_task(config: TrialConfig, runtime: Runtime) -> Task:
    """Return the task that `config` names, with its data; runs user-defined code that it names.

    Raises InputError for what cannot be opened.
    """
    config = config.load()
    return task_of(config)(config, runtime)


__all__ = [
    "Batch",
    "EvaluationBatch",
    "Inputs",
    "Split",
    "Task",
    "open_task",
    "register_task",
    "task_of",
    "task_of_data",
]
