"""The base class of tasks: everything that training, search and tracking need to know of a task."""

import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar  # with defaults, which typing has from Python 3.13 on

from automl.base.errors import InputError
from automl.base.serialise import to_json
from automl.config.runtime import Runtime
from automl.data.manifest import Manifest
from automl.data.records import Records
from automl.task.deployment import TaskDeployment
from automl.task.evaluator import Evaluator
from automl.task.task_data import SPLITS, Split, TaskData
from backbones import Site, call, insert, sites
from search.config import Data, Model, TaskSpec, Training, TrialConfig
from search.metric import Metric

Result = TypeVar("Result")
_RESULTS: dict[str, Any] = {}


def remember(purpose: str, key_values: Sequence[Any], make: Callable[[], Result]) -> Result:
    """Return the result of `make`, computed once in a process for each `purpose` and equal `key_values`.

    The values must be representable in JSON.
    """
    key = json.dumps([purpose, *key_values], sort_keys=True)
    if key not in _RESULTS:
        _RESULTS[key] = make()
    result: Result = _RESULTS[key]
    return result


def remember_sites(
    dependencies: Sequence[Any], build: Callable[[], nn.Module], example: Callable[[], Any]
) -> Sequence[Site]:
    """Return the sites of a model, without a change of torch's generator.

    `dependencies` holds everything that the model depends on, in JSON's types.
    """

    def find() -> Sequence[Site]:
        with torch.random.fork_rng(devices=[]):
            return sites(build(), example())

    return remember("sites", dependencies, find)


Inputs = Any  # inputs of a model: a tensor, a tuple of positional or a dictionary of keyword arguments
Batch = Any  # a pytree of tensors, which the task's `loss` takes

DataT_co = TypeVar("DataT_co", bound=Data, default=Data, covariant=True)
ModelT_co = TypeVar("ModelT_co", bound=Model, default=Model, covariant=True)
TrainingT_co = TypeVar("TrainingT_co", bound=Training, default=Training, covariant=True)


@dataclass(frozen=True)
class EvaluationBatch:
    """Batch of inputs of a split.

    Attributes:
        index: The numbers of the inputs in the split, int64 `(B,)`.
        inputs: The inputs of the model.
        targets: The targets for the evaluator.
    """

    index: Tensor
    inputs: Inputs
    targets: Any


class Task(TaskData, TaskDeployment, Generic[DataT_co, ModelT_co, TrainingT_co]):
    """The definition of what is learned and how it is scored, for one configuration on one device.

    A task of your own is a subclass in a file, named by `TrialConfig(task="file.py:Class")`. A subclass of
    `Task[MyData, MyModel, MyTraining]` has the sections of its configuration with these types. Each worker
    has its own task: `batches` yields its part of every global batch, and `evaluate` combines the workers'
    results. Its bases have the methods about its data and about the deployment of a model.

    Args:
        config: The configuration of the training.
        runtime: The device, precision and workers.

    Attributes:
        spec: The declaration: the types of a configuration, the metrics, and which backbones fit.
        config: The configuration of the training.
        data: The dataset, `config.data`.
        chosen: The backbone, its options and the placement, `config.model`.
        training: Epochs, optimiser and augmentation, `config.training`.
        runtime: The device, precision and workers.
        metric: The primary metric, as `metric_of` returns it.
        batch_size: The size of a training batch of all workers.
        noun: The name of its inputs, in the plural.
        suffixes: The suffixes of files that `read_inputs` takes, in lower case.
        tolerance: The largest difference between an exported form and the trained model, measured by
            `compare`.
        learned: The names of the values that `learn` returns for each batch beside the loss. The mean over an
            epoch is the metric `train_NAME`.
        may_be_nan: Metrics that a good model may lack, such as the precision of a class without inputs.

    Example:
        >>> import automl
        >>> from automl.task import task_of
        >>> task = task_of(automl.TrialConfig())
        >>> issubclass(task, automl.Task), task.noun
        (True, 'images')
    """

    spec: ClassVar[TaskSpec]
    learned: Sequence[str] = ()
    may_be_nan: Collection[str] = ()

    def __init__(self, config: TrialConfig, runtime: Runtime) -> None:
        self.config = config
        self.data = self.data_of(config)
        self.chosen = cast(ModelT_co, config.model)
        self.training = cast(TrainingT_co, config.training)
        self.runtime = runtime
        self.metric = self.metric_of(config)

    @classmethod
    def metric_of(cls, config: TrialConfig) -> Metric:
        """Return the primary metric: the configuration's, or else the task's first one.

        Args:
            config: The configuration.

        Returns:
            The metric.
        """
        return cls.spec.metric(config.metric)

    @classmethod
    def data_of(cls, config: TrialConfig) -> DataT_co:
        """Return the data of a configuration, with the task's type.

        Args:
            config: The configuration, which has checked the type.

        Returns:
            The data.
        """
        return cast(DataT_co, config.data)

    @abstractmethod
    def model(self) -> nn.Module:
        """Build a new model with the configuration's placement and seed, on the device.

        Returns:
            The model.
        """

    def checkpoint_model(self) -> nn.Module:
        """Build the model whose weights a checkpoint holds. By default that is `model`.

        Returns:
            The model.
        """
        return self.model()

    def placed(
        self, build: Callable[[], nn.Module], example: Callable[[], Inputs], *dependencies: Any
    ) -> nn.Module:
        """Build a model and insert the configuration's placement, with its seed, on the device.

        Args:
            build: Builds the model without a placement.
            example: Returns two inputs on the CPU.
            dependencies: Everything that the model depends on beside its configuration, in JSON's types.
                Sites are searched once for equal values.

        Returns:
            The model.
        """
        torch.manual_seed(self.config.seed)
        model, sites = build(), None
        if self.chosen.placement:
            plain = to_json(replace(self.chosen, placement={}))
            sites = remember_sites([self.config.task, plain, *dependencies], build, example)
        return insert(model, self.chosen.placement, example(), known=sites).to(self.runtime.device)

    def initialise(self, model: nn.Module) -> list[str]:
        """Load the weights that the configuration names, if any, into a new model.

        Args:
            model: The model, without attention.

        Returns:
            The names of parameters that stay new, because the weights are for other labels.

        Raises:
            InputError: The weights cannot be loaded or do not fit.
        """
        if self.config.model.weights:
            raise InputError(f"task {self.config.task} starts from new weights; leave out model.weights")
        return []

    def set_training(self, model: nn.Module) -> None:
        """Put a model into training mode, before each epoch.

        Args:
            model: The model.
        """
        model.train()

    def notes(self) -> Sequence[str]:
        """Return notes on the model for the user, before it is trained.

        Returns:
            Sentences.

        Raises:
            InputError: The model cannot be trained.
        """
        return ()

    batch_size: int

    def shared_batch_size(self, least: int = 2) -> int:
        """Return the configuration's batch size, or the number of training inputs if there are fewer.

        Args:
            least: The smallest batch size.

        Returns:
            The batch size of all workers.

        Raises:
            InputError: It cannot be divided among the workers, or is below `least`.
        """
        count, workers = self.size("train"), self.runtime.workers
        size: int = min(self.config.training.batch_size, count // workers * workers)
        if size < least or size % workers:
            raise InputError(
                f"batch_size must be a multiple of the workers that share it, with {least} or more "
                f"{self.noun}; got {size} with {workers} workers and {count} {self.noun} to train on"
            )
        return size

    def steps(self) -> int:
        """Return the number of training batches in an epoch."""
        return self.size("train") // self.batch_size

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the training batches of an epoch, on the device. They depend on the seed and the epoch only.

        Args:
            epoch: The epoch, from 0 on.

        Yields:
            Batches, each a pytree of tensors.
        """

    @abstractmethod
    def example(self, count: int) -> Inputs:
        """Return a batch of model inputs with arbitrary content, on the device.

        Args:
            count: The number of inputs.

        Returns:
            The inputs.
        """

    def serve(self, model: nn.Module, example: Inputs) -> Callable[[], object]:
        """Return a function that computes one output, whose time is the latency.

        By default it is the forward pass.

        Args:
            model: The model.
            example: One input.

        Returns:
            The function.
        """
        return lambda: call(model, example)

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the training loss of a batch.

        Args:
            model: The model.
            batch: A batch of `batches`.

        Returns:
            The loss, a scalar.
        """

    def learn(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch, followed by the values that `learned` names.

        Args:
            model: The model.
            batch: A batch of `batches`.

        Returns:
            The values, `(1 + len(learned),)`. Only the loss has a gradient.
        """
        return self.loss(model, batch).unsqueeze(0)

    @abstractmethod
    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        """Yield this worker's inputs of a whole split in batches, on the device.

        Args:
            split: The split.

        Yields:
            Batches.
        """

    @abstractmethod
    def evaluator(self, split: Split) -> Evaluator:
        """Return an evaluator, which computes metrics from the model's outputs.

        Args:
            split: The split.

        Returns:
            The evaluator.
        """

    def evaluate(
        self, model: nn.Module, split: Split, evaluator: Evaluator | None = None
    ) -> dict[str, Tensor]:
        """Compute the metrics of a whole split. A search uses validation; test is for the final result.

        Args:
            model: The model.
            split: The split.
            evaluator: An evaluator of this split, whose `answers` are needed afterwards. By default a new
                one.

        Returns:
            The metrics, scalars on the device.
        """
        evaluator = self.evaluator(split) if evaluator is None else evaluator
        for batch in self.parts(split):
            evaluator.update(call(model, batch.inputs), batch.targets)
            evaluator.index = [*evaluator.index, batch.index]
        return evaluator.compute(self.runtime)

    def test_metrics(self, model: nn.Module, history: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the metrics of a trained model on the test split.

        Args:
            model: The trained model.
            history: The metrics of its training, epoch by epoch.

        Returns:
            The metrics.
        """
        return {name: value.item() for name, value in self.evaluate(model, "test").items()}

    @property
    def has_trained_layers(self) -> bool:
        """Return True if `measure_sensitivity` can measure the model: a decoder with trained weights."""
        return False

    def measure_sensitivity(self, configs: Sequence[TrialConfig]) -> Sequence[Mapping[str, float]]:
        """Return the harm of each type of a search at each of its sites, before anything is trained.

        Args:
            configs: Configurations of the search.

        Returns:
            The harm of each type, in any unit, by site. Empty without trained layers.
        """
        return ()


class RecordTask(Task[DataT_co, ModelT_co, TrainingT_co]):
    """Task whose inputs are records. By default all splits are in one file."""

    @classmethod
    @abstractmethod
    def records(cls, config: TrialConfig) -> Records[Any]:
        """Return the inputs of a configuration, as they are now.

        Args:
            config: The configuration.

        Returns:
            The records.
        """

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Return the manifest of the data."""
        return cls.records(config).manifest()

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        """Return the file of each split."""
        return dict.fromkeys(SPLITS, self.records(self.config).file.path)

    def describe_changes(self) -> str:
        """Return what was left out or changed in the data."""
        return str(self.records(self.config).tally)

    def describe_splits(self) -> dict[str, str]:
        """Return how each split was made."""
        return self.records(self.config).describe_splits()
