"""A training by the user's own function.

loop        Trains a trial with a training function, which runs in a thread and yields what it reports
space       The search space of a training function
task        A training function as a task: its model and its example, for measuring, checks and export
trial       `Trial`, what a training function gets
models      The models that a training function gives, with their examples, and their deployment
"""

from collections.abc import Iterator
from dataclasses import dataclass

from search.config.sections import Data, Model, OwnTraining
from search.config.tasks import TaskSpec


@dataclass(frozen=True, kw_only=True)
class FunctionModel(Model):
    """The training function, which builds the model, and the placement.

    Attributes:
        backbone: The function, `file.py:train` or `package.module:train`.
    """

    def misuses(self) -> Iterator[str]:
        """Yield problems of its options: a function has none."""
        if self.options or self.weights:
            yield "a training function has no model.options and no model.weights; leave them out"


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
