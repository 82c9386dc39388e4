"""The base class of tasks: everything that the loop, the search and the tracking need to know about one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar  # with defaults, which typing has from Python 3.13 on

from attention import InputError
from automl.config.escape import printable
from automl.config.runtime import Runtime
from automl.data import shared
from automl.data.manifest import Manifest
from automl.data.records import Records
from automl.storage.storage import Storage
from automl.tasks.deployment import MODEL, Arrays, Deployment, read_arrays
from automl.tasks.evaluator import Evaluator
from automl.tasks.memo import remember_sites
from backbones import call, insert
from search.config import Data, Model, TaskSpec, Training, TrialConfig
from search.metric import Chance, Metric
from search.serialise import to_json

Inputs = Any  # of a model: a tensor, a tuple of positional or a dictionary of keyword arguments
Batch = Any  # a pytree of tensors: whatever the task's own `loss` takes
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHOWN = 10  # names of classes

DataT_co = TypeVar("DataT_co", bound=Data, default=Data, covariant=True)
ModelT_co = TypeVar("ModelT_co", bound=Model, default=Model, covariant=True)
TrainingT_co = TypeVar("TrainingT_co", bound=Training, default=Training, covariant=True)


@dataclass(frozen=True)
class EvaluationBatch:
    """Some inputs of a split. index: int64 `(B,)`, their numbers in it. targets: what the evaluator takes."""

    index: Tensor
    inputs: Inputs
    targets: Any


class Task(ABC, Generic[DataT_co, ModelT_co, TrainingT_co]):
    """What is learned and how it is scored, for one configuration on one device.

    A task of your own is a subclass in a file, named by `TrialConfig(task="file.py:Class")`. A subclass of
    `Task[MyData, MyModel, MyTraining]` has the parts of its configuration with these types. Each worker has
    its own task: `batches` gives its part of every global batch, and `evaluate` adds the parts of a split up.

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
        metric: The primary metric: the configuration's, or else the task's first one.
        noun: The name of its inputs, in the plural.
        suffixes: The suffixes of files that `read_inputs` takes, in lower case.
        tolerance: The largest difference of an exported form from the trained model, measured by `compare`.
        learned: The names of what `learn` measures of each batch beside the loss. The mean over an epoch is
            the metric `train_NAME`.
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
        self.metric: Metric = self.spec.metric(config.metric)

    @classmethod
    def data_of(cls, config: TrialConfig) -> DataT_co:
        """Return the data of a configuration, which has checked that they are of the task's type."""
        return cast(DataT_co, config.data)

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model with the configuration's placement and seed, on the device."""

    def placed(self, build: Callable[[], nn.Module], example: Callable[[], Inputs], *given: Any) -> nn.Module:
        """Build a model with the configuration's placement and seed, on the device.

        example: makes two inputs on the CPU. given: what the model depends on beside its configuration, in
        values that JSON can hold; sites are looked for once for all that is the same.
        """
        torch.manual_seed(self.config.seed)
        model, known = build(), None
        if self.chosen.placement:
            bare = to_json(replace(self.chosen, placement={}))
            known = remember_sites([self.config.task, bare, *given], build, example)
        return insert(model, self.chosen.placement, example(), known=known).to(self.runtime.device)

    def initialise(self, model: nn.Module) -> list[str]:
        """Put the weights that the configuration names, if any, into a new model.

        Returns the names of those that stay new, since the others are for other labels. Raises InputError
        where they cannot be had or do not fit.
        """
        if self.config.model.weights:
            raise InputError(f"task {self.config.task} starts from new weights; leave out the others")
        return []

    def notes(self) -> Sequence[str]:
        """What the user should know of the model before it is trained, in sentences.

        Raises InputError for a model that cannot be trained.
        """
        return ()

    batch_size: int  # of a training batch of all workers

    def shared_batch_size(self, least: int = 2) -> int:
        """Return the configuration's batch size; where there are fewer inputs to train on, all of them.

        Raises InputError where it cannot be divided among the workers, or is below `least`.
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
        """The training batches of an epoch, on the device: a function of the seed and the epoch alone.

        Each is a pytree of tensors.
        """

    @abstractmethod
    def example(self, count: int) -> Inputs:
        """A batch of `count` of the model's inputs, on the device; what is in it does not matter."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of a batch, a scalar."""

    def learn(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch and what `learned` names, `(1 + len(learned),)`.

        Only the loss has a gradient.
        """
        return self.loss(model, batch).unsqueeze(0)

    @abstractmethod
    def parts(self, split: Split) -> Iterator[EvaluationBatch]:
        """This worker's inputs of a whole split in batches, on the device."""

    @abstractmethod
    def evaluator(self, split: Split) -> Evaluator:
        """What turns a model's outputs for the parts of a split into metrics."""

    def evaluate(
        self, model: nn.Module, split: Split, evaluator: Evaluator | None = None
    ) -> dict[str, Tensor]:
        """The metrics of a whole split, numbers that are still on the device.

        The search asks for validation; test is for the final word.

        evaluator: of this split, to be asked for its `answers` afterwards; a new one where not given.
        """
        evaluator = self.evaluator(split) if evaluator is None else evaluator
        for part in self.parts(split):
            evaluator.update(call(model, part.inputs), part.targets)
            evaluator.index = [*evaluator.index, part.index]
        return evaluator.compute(self.runtime)

    @abstractmethod
    def size(self, split: Split) -> int:
        """The number of inputs of a split."""

    def class_counts(self, split: Split) -> Sequence[int]:
        """The inputs of each class of `labels` in a split; nothing for a task without."""
        return ()

    def chance(self, split: Split) -> Chance | None:
        """What guessing comes to in the primary metric; None where that is not known."""
        training = zip(self.class_counts("train"), self.class_counts("validation"), strict=True)
        return self.metric.chance(self.class_counts(split), [sum(counts) for counts in training])

    @classmethod
    @abstractmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        """Which inputs are in which split, with a hash of each, as they are now."""

    @classmethod
    def shared_name(cls, config: TrialConfig) -> str | None:
        """Return the name of the dataset in a storage; None if each machine gets the data by itself."""
        return None

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        """Return the cache file that has each of `splits`.

        A task that has a `shared_name` has this, too. Files of further splits may be among them.
        """
        raise InputError(f"{type(self).__name__} has a `shared_name` and needs `stored_files`")

    @classmethod
    def is_shared(cls, config: TrialConfig, splits: Sequence[Split]) -> bool:
        """Return whether these splits come from a search's storage, where they cannot change."""
        name = cls.shared_name(config)
        return name is not None and shared.is_shared(name, splits)

    @property
    def digest(self) -> str:
        """A hash of the data of all splits."""
        return self.manifest(self.config).digest

    # What is deployed of a model, and how it is used where there is no dataset. A task with one graph has
    # `deployment` and `model_inputs`; one with several has `deployments`, `graph_inputs` and `served_inputs`.

    def deployment(self, model: nn.Module) -> Deployment:
        """What is deployed of `model`, which is one graph."""
        raise InputError(f"{type(self).__name__} needs a method `deployment`, or `deployments`")

    def deployments(self, model: nn.Module) -> dict[str, Deployment]:
        """Each graph that is deployed of `model`, by its name, which its files have: `NAME.onnx`."""
        return {MODEL: self.deployment(model)}

    def model_inputs(self, split: Split, count: int) -> dict[str, Tensor]:
        """Up to `count` raw inputs spread over a split, as the deployed graph takes them, by name."""
        raise InputError(f"{type(self).__name__} needs a method `model_inputs`, or `graph_inputs`")

    def graph_inputs(self, split: Split, count: int) -> dict[str, dict[str, Tensor]]:
        """The same for each graph of `deployments`."""
        return {MODEL: self.model_inputs(split, count)}

    def served_inputs(self, split: Split, count: int) -> dict[str, Any]:
        """What `mlflow-model` takes for each graph, where that is something else than `graph_inputs`."""
        return {}

    def labelled_inputs(self, split: Split) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """All raw inputs of a split, as a deployed model takes them, in batches with their true labels.

        A label is an index of `Deployment.labels`, int64 `(N,)`. Nothing for a task without labels.
        """
        return iter(())

    def compare(self, ours: Arrays, theirs: Arrays) -> float:
        """How far an exported form's outputs are from the trained model's; above `tolerance` it is refused.

        The largest absolute difference, where a task does not say otherwise. NaN is refused, too.
        """
        return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)

    @classmethod
    def read_inputs(
        cls, exported: Mapping[str, Any], paths: Sequence[str | Path]
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """The inputs in files: what each is called, and its arrays as a batch of one.

        exported: what `config.json` says of the model, with `labels`, `inputs`, `outputs` and `details`; the
        dataset need not be there. Where a task does not say otherwise a file is an NPZ with an array for each
        input. Raises InputError for a file that cannot be read.
        """
        names = [found["name"] for found in exported["inputs"]]
        for path in paths:
            arrays = read_arrays(path, names)
            for i in range(len(arrays[names[0]])):
                yield f"{path}[{i}]", {name: value[i : i + 1] for name, value in arrays.items()}

    @classmethod
    def describe(cls, exported: Mapping[str, Any], outputs: Arrays) -> tuple[str, dict[str, Any]]:
        """The outputs for one input, without the batch's axis, in words: a line, and values for JSON."""
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
        """Write the outputs for the input `name`, as `describe` takes them, into files `PATH.*`.

        Returns these files. Raises InputError for a task whose answers are no files.
        """
        raise InputError(f"answers of {cls.__name__} are no files; leave out --out")

    def share_data(self, storage: Storage, folder: Path, splits: Sequence[Split]) -> dict[str, Any] | None:
        """Put what trials on other machines need of these splits into the storage, once for all of them.

        folder: of the search, which remembers it. Returns what `automl.data.shared.use` takes there; None
        where each machine gets the data by itself. Raises InputError when the storage does not take it.
        """
        name = self.shared_name(self.config)
        return None if name is None else shared.publish(storage, name, self.stored_files(splits), folder)

    # What a model card tells beyond the metrics. A task may leave each of these out.

    @property
    def labels(self) -> list[str]:
        """The names of the classes; nothing for a task without."""
        return []

    def describe_data(self) -> str:
        """In a line: what is learned from. The test split is not looked at."""
        train, validation = self.size("train"), self.size("validation")
        text = f"{train:,} {self.noun} to train on and {validation:,} for validation"
        if not self.labels:
            return text
        more = ", ..." if len(self.labels) > SHOWN else ""
        return f"{text}; {len(self.labels)} classes: {', '.join(map(printable, self.labels[:SHOWN]))}{more}"

    def describe_changes(self) -> str:
        """In a line: what of the data was left out, turned, rescaled or is double; empty where nothing."""
        return ""

    @classmethod
    def reads(cls, file: Path) -> bool:
        """Return whether a file in a folder of inputs is one of them."""
        return file.suffix.lower() in cls.suffixes

    def describe_splits(self) -> dict[str, str]:
        """How each split came about, in words."""
        return {}

    def usage(self) -> str:
        """In Markdown: what the deployed model takes and answers, and how to use it.

        Where it is left out the card tells names, types and shapes.
        """
        return ""

    def request(self) -> str:
        """Lines of Python that make `inputs`, what a request to the served model holds, from a file."""
        return 'inputs = {name: value.tolist() for name, value in np.load("inputs.npz").items()}'


class RecordTask(Task[DataT_co, ModelT_co, TrainingT_co]):
    """A task whose inputs have a common form. Where not said otherwise, all splits are in one file."""

    @classmethod
    @abstractmethod
    def records(cls, config: TrialConfig) -> Records[Any]:
        """Return the inputs of a configuration, as they are now."""

    @classmethod
    def manifest(cls, config: TrialConfig) -> Manifest:
        return cls.records(config).manifest()

    def stored_files(self, splits: Sequence[Split]) -> Mapping[str, Path]:
        return dict.fromkeys(SPLITS, self.records(self.config).file.path)

    def describe_changes(self) -> str:
        return str(self.records(self.config).tally)

    def describe_splits(self) -> dict[str, str]:
        return self.records(self.config).describe_splits()
