"""`Trial`, what a training function gets: Optuna's suggestions, the placement, the epochs, the reports."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from automl.base.errors import InputError
from automl.config.runtime import Runtime
from automl.tasks.function.models import Exported, Placed, check_example
from backbones.example import Example
from backbones.example import batch_size as size_of
from search.choices import parse_parameter

SINGLE = 32  # inputs of a step of the measurements, if the example has one input and no size is given


BatchT = TypeVar("BatchT")
BatchT_co = TypeVar("BatchT_co", covariant=True)


class Batches(Protocol[BatchT_co]):
    """Batches of an epoch, such as a `DataLoader` or a list."""

    def __iter__(self) -> Iterator[BatchT_co]: ...

    def __len__(self) -> int: ...


class Epochs:
    """The epochs of a trial. Iterating yields those that are not finished, from 0 on.

    Attributes:
        start: The number of finished epochs.
        exact: The number of all epochs. The last one may be partial.
    """

    def __init__(self, trial: "Trial", start: int, exact: float) -> None:
        self.start, self.exact, self._trial = start, exact, trial

    def __len__(self) -> int:
        """Return the number of all epochs, with those that are finished and the partial one."""
        return ceil(self.exact)

    def __iter__(self) -> Iterator[int]:
        for epoch in range(self.start, len(self)):
            self._trial._begin_epoch(epoch)
            yield epoch


class Trial(ABC):
    """A trial of a training function `train(trial)`.

    Everything before `epochs` is the start of the function. It declares: it builds the model, asks for
    hyperparameters, and names what a checkpoint holds. A search runs the start alone to learn what there is
    to choose. The generators of Python, NumPy and torch are seeded before the function runs.

    Args:
        source: Optuna's trial, which draws the hyperparameters.
        seed: The seed.
        runtime: The device and the workers.
        data: The path of `--data`.
        folder: The folder of the trial, if it is on this machine.

    Attributes:
        seed: The seed of this training. A confirmation trains each variant with the same seeds.
        rng: A generator with this seed on the CPU, for `DataLoader(generator=...)` and `torch.randperm`.
        runtime: The device, the rank and the number of workers. DDP is the function's own.
        device: The device to train on.
        data: The path of `--data`, or None.
        tests: True if `test` is needed: in a confirmation.
        parameters: The values of the hyperparameters so far.
        epoch: The current epoch of a loop over `epochs`, from 0 on.

    Example:
        >>> def train(trial):
        ...     model = trial.place(torch.nn.Linear(4, 2), example=torch.zeros(8, 4))
        ...     rate = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        ...     trial.state(model=model, optimizer=optimizer)
        ...     for epoch in trial.epochs(20):
        ...         accuracy = 0.5  # train an epoch and validate
        ...         trial.report(accuracy=accuracy)
    """

    def __init__(
        self,
        source: Any,
        *,
        seed: int = 0,
        runtime: Runtime | None = None,
        data: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.runtime = runtime or Runtime(device=torch.device("cpu"))
        self.seed, self.device = seed, self.runtime.device
        self.rng = torch.Generator().manual_seed(seed)
        self.data = None if data is None else Path(data)
        self.tests = False
        self.parameters: dict[str, Any] = {}
        self.epoch: int | None = None
        self._source, self._folder = source, folder
        self._placed: Placed | None = None
        self._exported: Exported | None = None
        self._states: dict[str, Any] = {}
        self._epochs: Epochs | None = None
        self._loops_over_batches = False

    @cached_property
    def folder(self) -> Path:
        """A folder for files that this trial alone writes, beside its checkpoint.

        It is a temporary one in the start, and where the search is stored in an object store.
        """
        if self._folder is None:
            self._temporary = TemporaryDirectory(prefix="automl-trial-")
            return Path(self._temporary.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    # The start

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Suggest a value, as `optuna.Trial.suggest_float` does.

        Args:
            name: The name of the hyperparameter.
            low: The lowest value.
            high: The highest value.
            step: The step between values.
            log: Draw the logarithm evenly.

        Returns:
            The value.
        """
        return float(self._suggest("suggest_float", name, low, high, step=step, log=log))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Suggest a value, as `optuna.Trial.suggest_int` does.

        Args:
            name: The name of the hyperparameter.
            low: The lowest value.
            high: The highest value.
            step: The step between values.
            log: Draw the logarithm evenly.

        Returns:
            The value.
        """
        return int(self._suggest("suggest_int", name, low, high, step=step, log=log))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Suggest one of the choices, as `optuna.Trial.suggest_categorical` does.

        Args:
            name: The name of the hyperparameter.
            choices: The choices: None, truth values, numbers or text.

        Returns:
            The choice.
        """
        if not all(choice is None or isinstance(choice, bool | int | float | str) for choice in choices):
            raise InputError(
                f"choices of {name!r} must be None, truth values, numbers or text, which a study can store; "
                f"got {list(choices)}. Choose names, and look the objects up"
            )
        return self._suggest("suggest_categorical", name, list(choices))

    def _suggest(self, method: str, name: str, *args: Any, **options: Any) -> Any:
        self._check_start(f"trial.{method}")
        if parse_parameter(name) is not None:
            raise InputError(f"{name!r} is a parameter of the placement; give yours another name")
        try:
            value = getattr(self._source, method)(name, *args, **options)
        except ValueError as error:
            raise InputError(f"trial.{method}({name!r}): {error}") from error
        self.parameters[name] = value
        return value

    def place(self, model: nn.Module, example: Example, *, batch_size: int | None = None) -> nn.Module:
        """Insert the trial's placement into the model. The new modules start as the identity.

        Call it once, before the optimiser is made and before the model moves to a device.

        Args:
            model: The model, on the CPU.
            example: Inputs of the model: a tensor, a tuple of positional arguments, or a mapping of keyword
                arguments. The batch is the first dimension. Time and memory are measured on them.
            batch_size: The number of inputs of a training step. By default that of the example, or 32 if it
                has one input.

        Returns:
            The model.

        Raises:
            InputError: Nothing can be placed, or it is the second call.
        """
        self._check_start("trial.place")
        if self._placed is not None:
            raise InputError(
                "trial.place must be called once, but was called twice; join the models in one module"
            )
        if not isinstance(model, nn.Module):
            raise InputError(f"trial.place takes a torch module; got {type(model).__name__}")
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            raise InputError("trial.place takes a model on the CPU; move the model that it returns")
        check_example(example)
        size = size_of(example)
        size = batch_size or (SINGLE if size == 1 else size)
        self._placed = self._insert(Placed(model=model, example=example, batch_size=size))
        return self._placed.model

    def state(self, **objects: Any) -> None:
        """Name the objects of a checkpoint, which is written at each report.

        A trial that continues loads them here. Without this call it starts over.

        Args:
            objects: Objects with `state_dict` and `load_state_dict`, such as model, optimiser and scheduler.
                Their states may hold tensors, numbers, text, lists and dictionaries.

        Raises:
            InputError: An object has no such methods, or its name is taken.
        """
        self._check_start("trial.state")
        for name, each in objects.items():
            if name in self._states:
                raise InputError(f"trial.state has two objects called {name!r}; give one another name")
            if not all(callable(getattr(each, f"{verb}state_dict", None)) for verb in ("", "load_")):
                raise InputError(
                    f"trial.state takes objects with state_dict and load_state_dict; {name!r} is a "
                    f"{type(each).__name__}"
                )
            self._states[name] = each

    def export(self, model: nn.Module, example: Example | None = None, labels: Sequence[str] = ()) -> None:
        """Name the model that `automl export` writes. It contains the placed one, and may do more.

        Args:
            model: The model, from raw inputs to answers. It takes tensors and returns tensors, with the batch
                as their first dimension.
            example: Inputs of the model, one or more. By default those of `place`. The export is compared
                with the trained model on them, with noise.
            labels: The names of the classes, for the last axis of the first output. Add a softmax to the
                model, so that predictions are probabilities.

        Raises:
            InputError: The model is no module, or there is no example.
        """
        self._check_start("trial.export")
        if example is None and self._placed is None:
            raise InputError("trial.export needs an example, or trial.place before it")
        if not isinstance(model, nn.Module):
            raise InputError(f"trial.export takes a torch module; got {type(model).__name__}")
        if example is None:
            assert self._placed is not None
            example = self._placed.example
        check_example(example)
        self._exported = Exported(model=model, example=example, labels=[str(label) for label in labels])

    def epochs(self, count: int, *, partial: bool = False) -> Epochs:
        """End the start of the function, and return the epochs of this trial.

        A slower model than the baseline's gets as many epochs as fit into the baseline's time: whole ones, or
        with `partial` also a part of one more.

        Args:
            count: The number of epochs of the baseline. `--epochs` replaces it.
            partial: The function loops over `batches`, which ends the last epoch early.

        Returns:
            The epochs. A loop over them begins with the first one that is not finished.

        Raises:
            InputError: The number is below 1, or nothing was placed.
        """
        self._check_start("trial.epochs")
        if type(count) is not int or count < 1:
            raise InputError(f"trial.epochs takes a whole number from 1 on; got {count!r}")
        if self._placed is None:
            raise InputError(
                "nothing was placed: call model = trial.place(model, example=...) before trial.epochs"
            )
        self._epochs = self._begin(count, partial=partial)
        return self._epochs

    def _check_start(self, call: str) -> None:
        if self._epochs is not None:
            raise InputError(f"{call} must come before trial.epochs, which ends the start of the function")

    # The loop

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def total_epochs(self) -> float:
        """The number of epochs of this trial, for a schedule. It is whole unless the last one is partial."""
        return self._started("trial.total_epochs").exact

    @property
    def fraction(self) -> float:
        """The fraction of the training that is over at the start of the epoch, from 0 to 1."""
        epochs = self._started("trial.fraction")
        return (epochs.start if self.epoch is None else self.epoch) / epochs.exact

    def batches(self, batches: Batches[BatchT]) -> Iterator[BatchT]:
        """Yield the batches of an epoch. In a last epoch that is partial, yield only its part.

        Args:
            batches: The batches of a whole epoch, such as a `DataLoader`. They have a length.

        Yields:
            The batches.

        Raises:
            InputError: They have no length.
        """
        epochs = self._started("trial.batches")
        try:
            count = len(batches)
        except TypeError:
            raise InputError("trial.batches takes batches with a length, such as a DataLoader") from None
        self._loops_over_batches = True
        part = epochs.exact - (len(epochs) - 1) if self.epoch == len(epochs) - 1 else 1.0
        yield from islice(batches, max(1, round(part * count)))

    def report(self, *, epoch: int | None = None, **metrics: Any) -> None:
        """Report the validation metrics of an epoch. A checkpoint is written.

        Args:
            epoch: The number of finished epochs. By default that of the loop over `epochs`.
            metrics: The metrics by name, among them that of `--metric`.

        Raises:
            InputError: The metric is missing, or the epoch is not above the last one.
            optuna.TrialPruned: The trial is stopped. Let it pass.
        """
        self._started("trial.report")

    def test(self, *, per_example: Any = None, **metrics: Any) -> None:
        """Report the metrics of the test data, after the last epoch. A search ignores them.

        Args:
            per_example: What each test input adds to the metric, such as 1 for a hit and 0 for a miss
                `(N,)`. The verdict then says how much the choice of test inputs matters.
            metrics: The metrics by name, among them that of `--metric`.
        """
        self._started("trial.test")

    def _started(self, call: str) -> Epochs:
        if self._epochs is None:
            raise InputError(f"{call} must come after trial.epochs")
        return self._epochs

    @abstractmethod
    def _insert(self, placed: Placed) -> Placed:
        """Insert the placement."""

    @abstractmethod
    def _begin(self, count: int, *, partial: bool) -> Epochs:
        """Return the epochs of the trial, or end the function."""
