"""A training that is any command."""

from automl.tasks.command.config import CommandModel, CommandTraining
from search.config.sections import Data
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=90,
    data=Data,
    model=CommandModel,
    training=CommandTraining,
    metrics=(),
    opens=False,
    loop="automl.tasks.command.loop:train",
)

__all__ = ["SPEC", "CommandModel", "CommandTraining"]
