"""The interface of tasks: the class `Task`, its parts, and how the task of a name or of data is found.

base             The base class `Task`, and results that are computed once in a process
task_data        The part of a task about its data: splits, classes, manifest, files in a storage
opening          Finds and opens the task of a name, data or a configuration, and checks that data stay
evaluator        Computes metrics from a model's outputs, over batches and workers
classification   Base class of classification tasks
deployment       Deployment of a trained model: module, named inputs and outputs, use without data
initial          Initial weights: published, from a file, or from a trained trial
subject          A model without a dataset, for `automl cost`
published_study  Published experiments: their figures and sources
checks           Checks before a training: of a model, and of attention modules of others
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from automl.task.base import Batch, EvaluationBatch, Inputs, Task
    from automl.task.opening import open_task, register_task, task_of, task_of_data
    from automl.task.task_data import Split

# These import torch, which takes seconds. The declaration of a task does not need it.
__getattr__ = lazily(__name__)

__all__ = [
    "Batch", "EvaluationBatch", "Inputs", "Split", "Task", "open_task", "register_task", "task_of",
    "task_of_data",
]  # fmt: skip
