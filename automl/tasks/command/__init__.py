"""A training that is any command.

config      Configuration of a training that is any command: the command, and where it reports its metric
evaluator   Score what commands write with an evaluator, and check files before and after runs
commits     Commits that a command runs in: find them, copy each, and import its packages from the copy
loop        Runs a trial that is a command, measures it, and finds the metric that it printed or wrote
run_ledger  List and draw a ledger, and compare its head with its first baseline
referee     Compare commands with fresh paired seeds, without a search: `automl referee`
"""

from automl.tasks.command.config import CommandModel, CommandTraining
from search.config.sections import Data
from search.config.tasks import TaskSpec

SPEC = TaskSpec(
    order=90,
    data=Data,
    model=CommandModel,
    training=CommandTraining,
    metrics=(),
    loop="automl.tasks.command.loop:train",
)

__all__ = ["SPEC", "CommandModel", "CommandTraining"]
