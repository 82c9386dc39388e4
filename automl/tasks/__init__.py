"""The built-in tasks: what is learned, and how it is scored. Each folder is one task, and everything of it.

stereo                   The disparity of each pixel of the left of two rectified images
sequence_classification  Classification of sequences of sensor readings
code_retrieval           Code search: functions by their docstrings
detection                Boxes and masks of the objects in images
segmentation             The class of each pixel of an image
language_modelling       Prediction of the next token of a text, or of sequences of recall
image_classification     Classification of images
function                 A training by a function of the user
command                  A training that is any command

A folder declares its task by `SPEC` in its `__init__`, with the sections of its configuration (in `config`
if they are long). It usually has `data`, `model`, `score` (the evaluator), `deploy`, `space` (search
spaces), `study` (published experiments) and `task`, the subclass of `Task`. Tables and texts are beside them:
`studies.toml`, `data/datasets.toml`, and `usage.md.template` for the model card. Nothing outside of a folder
imports it: `automl.base.lazy` finds it by its name.

A package declares a task by an entry point of the group `automl.tasks`. Other tasks are named by
`register_task`, or as `file.py:Class`. `open_task` opens the task of a configuration.
"""

from typing import TYPE_CHECKING

from automl.base.lazy import lazily

if TYPE_CHECKING:
    from automl.task.opening import open_task

__getattr__ = lazily(__name__)  # it imports torch, which takes seconds

__all__ = ["open_task"]
