"""The base class of tasks: everything that training, search and tracking need to know of a task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar  # with defaults, which typing has from Python 3.13 on

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.base.serialise import to_json
from automl.config.runtime import Runtime
from automl.data import shared
from automl.data.manifest import Manifest
from automl.data.records import Records
from automl.storage.storage import Storage
from automl.tasks.deployment import MODEL, Arrays, Deployment, Run, read_arrays
from automl.tasks.evaluator import Evaluator
from automl.tasks.memo import remember_sites
from automl.tasks.shown import ShownInputs
from backbones import call, insert
from search.config import Data, Model, TaskSpec, Training, TrialConfig
from search.metric import Chance, Metric
from search.record import TrialRecord

Inputs = Any  # inputs of a model: a tensor, a tuple of positional or a dictionary of keyword arguments
Batch = Any  # a pytree of tensors, which the task's `loss` takes
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHOWN = 10  # largest number of class names in a description

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


class Task(ABC, Generic[DataT_co, ModelT_co, TrainingT_co]):
    """The definition of what is learned and how it is scored, for one configuration on one device.

    A task of your own is a subclass in a file, named by `TrialConfig(task="file.py:Class")`. A subclass of
    `Task[MyData, MyModel, MyTraining]` has the sections of its configuration with these types. Each worker
    has its own task: `batches` yields its part of every global batch, and `evaluate` combines the workers'
    results.

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
        >>> from automl.tasks import task_of
        >>> task = task_of(automl.TrialConfig())
        >>> issubclass(task, automl.Task), task.noun
        (True, 'images')
    """

    spec: ClassVar[TaskSpec]
    noun: str = "inputs"
    suffixes: Collection[str] = (".npz",)
    tolerance: float = 1e-4
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

    @abstractmethod
    def size(self, split: Split) -> int:
        """Return the number of inputs of a split.

        Args:
            split: The split.

        Returns:
            The number.
        """

    def class_counts(self, split: Split) -> Sequence[int]:
        """Return the number of inputs of each class in a split.

        Args:
            split: The split.

        Returns:
            The numbers in the order of `labels`; empty for a task without classes.
        """
        return ()

    def chance(self, split: Split) -> Chance | None:
        """Return the score of guessing in the primary metric, or None if it is unknown.

        Args:
            split: The split.

        Returns:
            The score.
        """
        training = zip(self.class_counts("train"), self.class_counts("validation"), strict=True)
        return self.metric.chance(self.class_counts(split), [sum(counts) for counts in training])

    @classmethod
    @abstractmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Return the list of the inputs of each split, with a hash of each, as they are now.

        Args:
            config: The configuration.

        Returns:
            The manifest.
        """

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        """Return the name of the dataset in a storage, or None if each machine loads the data itself.

        Args:
            config: The configuration.

        Returns:
            The name.
        """
        return None

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        """Return the cache file of each split. Required for a task with a `shared_name`.

        Args:
            splits: The splits. Files of further splits may be returned, too.

        Returns:
            The path of the file for each split.
        """
        raise InputError(f"{type(self).__name__} has a `shared_name` and needs `stored_files`")

    @classmethod
    def is_shared(cls, config: TrialConfig, splits: Sequence[Split]) -> bool:
        """Return True if these splits come from a search's storage, where they cannot change.

        Args:
            config: The configuration.
            splits: The splits.

        Returns:
            The result.
        """
        name = cls.shared_name(config)
        return name is not None and shared.is_shared(name, splits)

    @property
    def digest(self) -> str:
        """Return a hash of the data of all splits."""
        return self.manifest(self.config).digest

    def after_search(self, folder: Path, ranked: Sequence[TrialRecord]) -> None:
        """Measure what the report of a search shows of this task beside its trials. By default nothing.

        Args:
            folder: The folder of the search.
            ranked: The completed trials, the best first.
        """

    # Deployment: the graphs of a model, and their use without the dataset. A task with one graph implements
    # `deployment` and `model_inputs`. A task with several implements `deployments`, `graph_inputs`,
    # `served_inputs` and `compare_together`.

    def deployment(self, model: nn.Module) -> Deployment:
        """Return the deployment of a model with one graph.

        Args:
            model: The trained model.

        Returns:
            The deployment.
        """
        raise InputError(f"{type(self).__name__} needs a method `deployment`, or `deployments`")

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        """Return each deployed graph of a model by name. The files are named `NAME.onnx`.

        Args:
            model: The trained model.

        Returns:
            The deployments.
        """
        return {MODEL: self.deployment(model)}

    def rebuilding_files(self) -> Mapping[str, bytes]:
        """Return the files that rebuild the model from an export without deployments.

        Returns:
            The content of each file by its path.
        """
        return {}

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Return raw inputs spread over a split, as the deployed graph takes them.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs by name.
        """
        raise InputError(f"{type(self).__name__} needs a method `model_inputs`, or `graph_inputs`")

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        """Return `model_inputs` for each graph of `deployments`.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs of each graph. A graph that is left out is checked on the example of its deployment.
        """
        return {MODEL: self.model_inputs(split, count)}

    def served_inputs(self, split: Split, count: int) -> dict[str, Any]:
        """Return the inputs of `mlflow-model` for each graph, if they differ from `graph_inputs`.

        Args:
            split: The split.
            count: The largest number of inputs.

        Returns:
            The inputs of each graph.
        """
        return {}

    def shown_inputs(self, count: int) -> ShownInputs | None:
        """Return the first inputs of the test split, spread over its classes, in a form to look at.

        Args:
            count: The largest number of inputs.

        Returns:
            The inputs. None if the task has no such form.
        """
        return None

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield all raw inputs of a split, as a deployed model takes them, in batches with their labels.

        Args:
            split: The split.

        Yields:
            Inputs by name, and labels as indices of `Deployment.labels`, int64 `(N,)`. Nothing for a task
            without labels.
        """
        return iter(())

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """Return the difference between the outputs of two forms of a model.

        Export rejects a difference above `tolerance`, and NaN. By default it is the largest absolute
        difference.

        Args:
            ours: Outputs of the trained model.
            theirs: Outputs of the exported form.

        Returns:
            The difference.
        """
        return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)

    def compare_together(self, model: nn.Module, runs: Mapping[str, Run]) -> Mapping[str, float]:
        """Return differences between the model and all exported graphs used together.

        Export rejects a difference above `tolerance`, and NaN.

        Args:
            model: The trained model.
            runs: The graphs of `deployments`, as functions of arrays.

        Returns:
            The difference of each check by its name. By default there is none.
        """
        return {}

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Read inputs from files, without the dataset.

        By default each file is an NPZ with an array per input.

        Args:
            exported: The entry of the model in `config.json`, with `labels`, `inputs`, `outputs` and
                `details`.
            paths: The files.

        Yields:
            The name of each input, and its arrays as a batch of one.

        Raises:
            InputError: A file cannot be read.
        """
        types = {entry["name"]: entry["dtype"] for entry in exported["inputs"]}
        for path in paths:
            arrays = {
                name: value.astype(types[name])
                if np.can_cast(value.dtype, types[name], "same_kind")
                else value
                for name, value in read_arrays(path, list(types)).items()
            }
            for i in range(len(next(iter(arrays.values())))):
                yield f"{path}[{i}]", {name: value[i : i + 1] for name, value in arrays.items()}

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """Describe the outputs for one input.

        Args:
            exported: The entry of the model in `config.json`.
            outputs: The outputs, without the axis of the batch.

        Returns:
            A line of text, and values for JSON.
        """
        labels = exported["labels"]
        if not labels:
            text = ", ".join(f"{name} {np.array2string(v, precision=6)}" for name, v in outputs.items())
            return text, {name: value.tolist() for name, value in outputs.items()}
        probabilities = dict(zip(labels, map(float, next(iter(outputs.values()))), strict=True))
        label = max(probabilities, key=probabilities.__getitem__)
        values = {"label": label, "probability": probabilities[label], "probabilities": probabilities}
        return f"{label} ({probabilities[label]:.1%})", values

    @classmethod
    def write(cls, exported: Mapping[str, Any], name: str, outputs: Arrays, path: Path) -> list[Path]:
        """Write the outputs for one input into files `PATH.*`.

        Args:
            exported: The entry of the model in `config.json`.
            name: The name of the input.
            outputs: The outputs, without the axis of the batch.
            path: The path without a suffix.

        Returns:
            The files.

        Raises:
            InputError: The task writes no files.
        """
        raise InputError(f"{cls.__name__} writes no files; leave out --out")

    def share_data(self, storage: Storage, folder: Path, splits: Sequence[Split]) -> dict[str, Any] | None:
        """Copy the data that trials on other machines need into the storage, once for all trials.

        Args:
            storage: The storage of the search.
            folder: The folder of the search, which records the copy.
            splits: The splits that are needed.

        Returns:
            The arguments of `automl.data.shared.use` on other machines, or None if each machine loads the
            data itself.

        Raises:
            InputError: The storage cannot be written.
        """
        name = self.shared_name(self.config)
        return None if name is None else shared.publish(storage, name, self.stored_files(splits), folder)

    # Further content of a model card. A task may leave out each of these.

    @property
    def labels(self) -> list[str]:
        """Return the names of the classes; empty for a task without classes."""
        return []

    def describe_data(self) -> str:
        """Return a line that describes the training data. The test split is not read."""
        train, validation = self.size("train"), self.size("validation")
        text = f"{train:,} {self.noun} to train on and {validation:,} for validation"
        if not self.labels:
            return text
        more = ", ..." if len(self.labels) > SHOWN else ""
        return f"{text}; {len(self.labels)} classes: {', '.join(map(printable, self.labels[:SHOWN]))}{more}"

    def describe_changes(self) -> str:
        """Return a line on inputs that were left out, changed or duplicated, or an empty string."""
        return ""

    @classmethod
    def reads(cls, file: Path) -> bool:
        """Return True if a file in a folder of inputs is an input.

        Args:
            file: The file.

        Returns:
            The result.
        """
        return file.suffix.lower() in cls.suffixes

    def describe_splits(self) -> dict[str, str]:
        """Return a description of how each split was made."""
        return {}

    def usage(self) -> str:
        """Return Markdown that explains the inputs, outputs and use of the deployed model.

        By default the card lists names, types and shapes.
        """
        return ""

    def request(self) -> str:
        """Return lines of Python that make `inputs`, the content of a request, from a file."""
        return 'inputs = {name: value.tolist() for name, value in np.load("inputs.npz").items()}'


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
