"""Tasks: what is learned, and how it is scored. Each folder is one task, and everything of it.

base                     The base class `Task`
task_data                The part of a task about its data: splits, classes, manifest, files in a storage
opening                  Finds the task of a name, of data or of a configuration, and opens it
evaluator                Computes metrics from a model's outputs, over batches and workers
classification           Base class of classification tasks
deployment               Deployment of a trained model: module, named inputs and outputs, use without data
initial                  Initial weights: published, from a file, or from a trained trial
memo                     Results that are computed once in a process
same_data                Checks whether a search's data have changed since it was created
subject                  A model without a dataset, for `automl cost`
stereo                   The disparity of each pixel of the left of two rectified images
sequence_classification  Classification of sequences of sensor readings
code_retrieval           Code search: functions by their docstrings
detection                Boxes and masks of the objects in images
segmentation             The class of each pixel of an image
language_modelling       Prediction of the next token of a text, or of sequences of recall
image_classification     Classification of images
function                 A training by a function of the user
command                  A training that is any command
published_study          Published experiments: their figures and sources
checks                   Checks before a training: of a model, and of attention modules of others

A folder declares its task by `SPEC` in its `__init__`. It usually has `config` (the sections of a
configuration), `data`, `model`, `score` (the evaluator), `deploy`, `space` (search spaces), `study`
(published experiments) and `task`, the subclass of `Task`. Tables and texts are beside them: `studies.toml`,
`data/datasets.toml`, and `usage.md.template` for the model card. Nothing outside of a folder imports it:
`automl.base.lazy` finds it by its name.

A package declares a task by an entry point of the group `automl.tasks`. Other tasks are named by
`register_task`, or as `file.py:Class`.
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from automl.tasks.base import Batch, EvaluationBatch, Inputs, Task
    from automl.tasks.opening import open_task, register_task, task_of, task_of_data
    from automl.tasks.task_data import Split

# These import torch, which takes seconds. The declaration of a task does not need it.
__getattr__ = lazily(__name__)

__all__ = [
    "Batch", "EvaluationBatch", "Inputs", "Split", "Task", "open_task", "register_task", "task_of",
    "task_of_data",
]  # fmt: skip
