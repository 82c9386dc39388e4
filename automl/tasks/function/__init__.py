"""A training by the user's own function.

config         Configuration of a training function
deploy         Deployment of the model that a training function exports: any arguments and outputs by name
generators     Random generators of Python, NumPy and torch, which a training function may draw from
inputs         Batches of a training function's example
loop           Trains a trial with the user's training function
running_trial  Runs a whole training function in a thread, and yields what it reports
space          The search space of a training function
start          Runs the start of a training function, which declares its model, hyperparameters and epochs
task           A training function as a task: its model and its example, for measuring, checks and export
trial          `Trial`, what a training function gets
"""

from automl.tasks.function.config import FunctionModel
from search.config.sections import Data, OwnTraining
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
