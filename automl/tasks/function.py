"""A training function as a task: its model and its example, for measuring, checks and export."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import optuna
from torch import Tensor, nn

from attention import InputError
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.functions.inputs import repeat
from automl.functions.start import Start, run_start
from automl.functions.trial import Placed
from automl.tasks.base import Batch, EvaluationBatch, Inputs, Split, Task
from automl.tasks.evaluator import Evaluator
from backbones import insert
from backbones.example import sum_outputs
from search.config import TASKS, Data, FunctionModel, OwnTraining, TrialConfig
from search.metric import Metric

NOMINAL = 2048  # inputs of an epoch, since only the function knows their number


class FunctionTask(Task[Data, FunctionModel, OwnTraining]):
    """The model of a training function. The function itself has the data, the loss and the loop."""

    spec = TASKS["function"]

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        # The function chooses the precision of its loop. It is measured in float32.
        super().__init__(config, replace(runtime, precision="fp32"))
        self.batch_size = config.training.batch_size

    @classmethod
    def metric_of(cls, config: TrialConfig) -> Metric:
        """Return the metric that the function reports."""
        assert isinstance(config.training, OwnTraining), "its spec has this type"
        return config.training.reports

    def _start(self) -> Start:
        """Run the start of the function with the configuration's hyperparameters and placement."""
        return run_start(
            self.chosen.backbone,
            optuna.trial.FixedTrial(dict(self.training.parameters)),
            self._insert,
            seed=self.config.seed,
            data=self.data.path,
        )

    def _insert(self, placed: Placed) -> Placed:
        return replace(placed, model=insert(placed.model, self.chosen.placement, placed.example))

    @cached_property
    def _example(self) -> Inputs:
        return self._start().placed.example

    def model(self) -> nn.Module:
        """Return a new model of the function, with the placement, on the device."""
        start = self._start()
        self.__dict__.setdefault("_example", start.placed.example)
        return start.placed.model.to(self.runtime.device)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the example as a batch, as often as an epoch has steps."""
        batch = self.example(self.batch_size)
        for _ in range(self.steps()):
            yield batch

    def example(self, count: int) -> Inputs:
        """Return so many inputs of the function's example, on the device."""
        return repeat(self._example, count, self.runtime.device)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the outputs. Its gradients take as long as those of a loss."""
        return sum_outputs(model, batch)

    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        """Raise InputError, since the function evaluates its model itself."""
        raise self._own("validation and test data")

    def evaluator(self, split: Split) -> Evaluator:
        """Raise InputError, since the function evaluates its model itself."""
        raise self._own("validation and test data")

    def _own(self, what: str) -> InputError:
        return InputError(f"training function {self.chosen.backbone!r} has its {what} itself")

    def size(self, split: Split) -> int:
        """Return a nominal number of training inputs, and 0 for the other splits."""
        return NOMINAL if split == "train" else 0

    def steps(self) -> int:
        """Return the number of steps of a nominal epoch."""
        return max(1, round(NOMINAL / self.batch_size))

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Return an empty manifest, since only the function knows its data."""
        return Manifest.from_splits({"train": []})

    def describe_data(self) -> str:
        """Return a line on the function."""
        return f"{Path(self.chosen.backbone).name} trains on its own data, and reports {self.metric.label}"
