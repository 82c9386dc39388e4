"""Tasks: what is learned, and how it is scored.

base                     The base class `Task`
evaluator                Computes metrics from a model's outputs, over batches and workers
classification           Base class of classification tasks
cross_entropy            The loss of classifiers: label smoothing, class weights, mixed inputs
code_deployment          Deployment of the two encoders of code search
deployment               Deployment of a trained model: module, named inputs and outputs
shown                    Inputs of a split in a form that people can look at
initial                  Initial weights: published, from a file, or from a trained trial
memo                     Results that are computed once in a process
model_check              Tries a model before training, and chooses its memory format
attention_check          Checks attention modules of others at the sites of configurations
image_classification     Classification of images
sequence_classification  Classification of sequences of sensor readings
code_retrieval           Code search: functions by their docstrings
retrieval_evaluator      Computes mean reciprocal ranks from vectors of queries and code
retrieval_metrics        Ranks and their metrics: MRR, recall, NDCG
language_modelling       Prediction of the next token of a text, or of sequences of recall
language_evaluator       Computes loss, bits per byte and accuracy from logits of tokens
language_deployment      Deployment of a causal decoder: one graph, or those of a text and of one more token
language_usage           Usage of an exported decoder, for its model card
layer_sensitivity        Scores a trained decoder with one layer replaced
stereo                   The disparity of each pixel of the left of two rectified images
stereo_evaluator         Computes end-point error and fractions of wrong pixels
stereo_deployment        Deployment of a stereo model, and its input and output files
detection                Boxes and masks of the objects in images
detection_evaluator      Computes average precision of boxes and masks
detection_deployment     Deployment of a detector, and its input and output files
function                 A training function: its model and example, for measuring and export
function_deployment      Deployment of the model that a training function exports
segmentation             The class of each pixel of an image
segmentation_evaluator   Computes intersection over union from logits of pixels, and the loss
same_data                Checks whether a search's data have changed since it was created

A built-in task is declared by one entry in `search.config.tasks.TASKS`. A package declares a task by an entry
point of the group `automl.tasks`. Other tasks are named by `register_task`, or as `file.py:Class`.
"""

from automl.base.errors import InputError
from automl.base.loading import load_object
from automl.config.runtime import Runtime
from automl.data.near_layouts import check_layout
from automl.tasks.base import Batch, EvaluationBatch, Inputs, Split, Task
from search.config import COMMAND, TASKS, TrialConfig
from search.config.tasks import TaskSpec, load_spec, register, registered_specs, resolve


def register_task(name: str, task: str | type[Task]) -> str:
    """Make a task available by name: to configurations, `--data` and `--space` of this process.

    A package does that for every process by an entry point of the group `automl.tasks`. A configuration
    stores the reference of the task instead of the name, so other machines need no registration.

    Args:
        name: The name. It must not be that of a built-in task.
        task: The class, or its reference `file.py:Class` or `package.module:Class`.

    Returns:
        The reference.

    Raises:
        InputError: The name is invalid or taken, or the class cannot be loaded or has no `spec`.

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
    """Return the declaration of the task that recognises the data at `path`, or None for images of classes.

    Registered tasks are asked first. Raises InputError if an archive cannot be extracted, or a folder is
    nearly in the layout of a task.
    """
    specs = [*(spec for _, spec in registered_specs()), *TASKS.values()]
    chosen = next((spec for spec in specs if spec.detects(path)), None)
    if chosen in (None, TASKS["language-modelling"]):  # only the endings of most files tell these
        check_layout(path)
    return chosen


def task_of(config: TrialConfig) -> type[Task]:
    """Return the class of a configuration's task, and load its code if it is user-defined.

    Raises InputError if the task is unknown.
    """
    loaded: object
    if config.task == COMMAND:
        raise InputError(
            "a command has no data or model that automl can open: its own program must do that. "
            "`automl status`, `report` and `confirm` work with commands"
        )
    if config.task in TASKS:
        loaded = resolve(TASKS[config.task].task)
    else:
        loaded = load_object("task", "Class", config.task, TASKS)
    if not (isinstance(loaded, type) and issubclass(loaded, Task)):
        raise InputError(f"task {config.task!r} must be a subclass of automl.Task; got {loaded!r}")
    return loaded


def open_task(config: TrialConfig, runtime: Runtime) -> Task:
    """Return the task of a configuration with its data. Runs user-defined code.

    Args:
        config: The configuration.
        runtime: The device, precision and workers.

    Returns:
        The task.

    Raises:
        InputError: The code or the data cannot be loaded.
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
