"""A training by the user's own function."""

from automl.tasks.function.config import FunctionModel
from search.config.own_training import OwnTraining
from search.config.sections import Data
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=80,
    data=Data,
    model=FunctionModel,
    training=OwnTraining,
    metrics=(),
    task="automl.tasks.function.task:FunctionTask",
    loop="automl.tasks.function.loop:train",
)

__all__ = ["SPEC", "FunctionModel"]
