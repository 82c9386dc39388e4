"""Tasks: what can be learned.

base                     The base class `Task`
evaluator                From a model's outputs to metrics, over batches and workers
class_metrics            Balanced accuracy, macro F1 and AUC, and what guessing comes to
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
same_data                Checks whether a search's data have changed since it was made

A new built-in task is one file, an entry in TASKS here and one in `search.config.tasks.TASK_CONFIGS`.
"""

from collections.abc import Mapping
from importlib import import_module

from attention import InputError
from automl.config.runtime import Runtime
from automl.tasks.base import Batch, Inputs, Part, Split, Task
from backbones.loading import load_object
from search.config import TrialConfig

# By name, the module and its class. A process of a trial imports the one of its own task alone.
TASKS: Mapping[str, tuple[str, str]] = {
    "image-classification": ("image_classification", "ImageClassification"),
    "sequence-classification": ("sequence_classification", "SequenceClassification"),
    "code-retrieval": ("code_retrieval", "CodeRetrieval"),
    "stereo": ("stereo", "Stereo"),
    "detection": ("detection", "Detection"),
}


def task_of(config: TrialConfig) -> type[Task]:
    """Return the class of the task that `config` names, loading its code where it is user-defined.

    Raises InputError for an unknown one.
    """
    found: object
    if config.task in TASKS:
        module, name = TASKS[config.task]
        found = getattr(import_module(f"{__name__}.{module}"), name)
    else:
        found = load_object("task", "Class", config.task, TASKS)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise InputError(f"task {config.task!r} must be a subclass of automl.tasks.Task; got {found!r}")
    return found


def open_task(config: TrialConfig, runtime: Runtime) -> Task:
    """Return the task that `config` names, with its data; runs user-defined code that it names.

    Raises InputError for what cannot be opened.
    """
    config = config.load()
    return task_of(config)(config, runtime)


__all__ = ["TASKS", "Batch", "Inputs", "Part", "Split", "Task", "open_task", "task_of"]
