"""The search space of a training function: a placement in its model, and the hyperparameters it asks for.

The start of a function declares its model, hyperparameters and epochs, and a draw needs these. They depend on
the values of categorical and integer hyperparameters, such as a width or the choice of an optimiser, but not
on those of continuous ones. So the start runs once for each combination of such values that is drawn, and
other draws use what it declared.
"""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from math import exp, log
from typing import Any

import optuna
import torch

from automl.base.errors import InputError, describe_error
from automl.base.loading import load_object
from automl.config.device import kept_generators, seed_all
from automl.tasks.function import FunctionModel
from automl.tasks.function.models import Exported, Placed, repeat
from automl.tasks.function.trial import Epochs, Trial
from backbones import sites
from backbones.site import Site
from search import choices
from search.config import Data, TrialConfig
from search.config.sections import OwnTraining
from search.config.tasks import TASKS
from search.metric import Metric
from search.space import Space

TrainingFunction = Callable[[Trial], Any]


class Started(BaseException):
    """The end of a function's start. No `except Exception` of the function catches it."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Declarations of the start of a function, with the epochs of the baseline."""

    placed: Placed
    exported: Exported | None
    epochs: int


class StartTrial(Trial):
    """A trial of which only the start runs. `insert` returns the model with the placement."""

    def __init__(self, source: Any, insert: Callable[[Placed], Placed], **options: Any) -> None:
        super().__init__(source, **options)
        self._insert_into = insert
        self.start: Start | None = None

    def _insert(self, placed: Placed) -> Placed:
        return self._insert_into(placed)

    def _begin(self, count: int, *, partial: bool) -> Epochs:
        assert self._placed is not None
        self.start = Start(placed=self._placed, exported=self._exported, epochs=count)
        raise Started


def find_function(name: str) -> TrainingFunction:
    """Load a training function, which then ends its own runs of MLflow, or raise InputError."""
    function: TrainingFunction = load_object("training function", "function", name, TASKS)

    @wraps(function)
    def run(trial: Trial) -> None:
        before = _active_run()
        try:
            function(trial)
        finally:
            with suppress(Exception):  # a server that is gone
                while _active_run() != before:
                    sys.modules["mlflow"].end_run()

    return run


def _active_run() -> str | None:
    """Return the ID of this thread's open run of MLflow, if the user's code has imported it."""
    run = sys.modules["mlflow"].active_run() if "mlflow" in sys.modules else None
    return run and run.info.run_id


def run_start(name: str, trial: StartTrial) -> Start:
    """Run the start of the training function `name`. What it prints is dropped.

    Raises InputError if the start raises an error, or the function never calls `trial.epochs`.
    """
    function = find_function(name)
    with kept_generators(), redirect_stdout(io.StringIO()):
        seed_all(trial.seed)
        try:
            function(trial)
        except Started:
            assert trial.start is not None
            return trial.start
        except optuna.TrialPruned:
            raise  # the function rejects these values
        except InputError as error:
            raise InputError(f"training function {name!r}: {error}") from error
        except (Exception, SystemExit) as error:
            raise InputError(
                f"the start of training function {name!r} raised {describe_error(error)}"
            ) from error
    raise InputError(
        f"training function {name!r} ended without trial.epochs; loop over `for epoch in trial.epochs(20)`"
    )


History = tuple[Any, ...]  # the discrete values that were drawn so far


@dataclass(frozen=True)
class Suggestion:
    """A hyperparameter that a function asks for: a call of an Optuna trial, its name first in `args`."""

    method: str
    args: tuple[Any, ...]
    options: Mapping[str, Any]

    def draw(self, trial: Any) -> Any:
        """Draw a value."""
        return getattr(trial, self.method)(*self.args, **self.options)

    @property
    def middle(self) -> Any:
        """The default of a baseline: the middle of the range, or the first choice."""
        if self.method == "suggest_categorical":
            return self.args[1][0]
        _, low, high = self.args
        step = self.options.get("step")
        value = exp((log(low) + log(high)) / 2) if self.options.get("log") else (low + high) / 2
        return value if step is None else low + round((value - low) / step) * step


Step = Suggestion | Sequence[Site] | Start  # a call of the start: `suggest_`, `place` or `epochs`


@dataclass
class Starts:
    """The calls of the start of the function `name`: `steps` has the one after each history."""

    name: str
    data: str | None = None
    steps: dict[History, Step] = field(default_factory=dict)

    def draw(
        self,
        trial: Any,
        kinds: Sequence[str] = choices.TYPES,
        *,
        metric: Metric,
        chance: float | None,
        epochs: int | None,
    ) -> TrialConfig:
        """Draw a configuration."""
        history: History = ()
        parameters: dict[str, Any] = {}
        placement: Mapping[str, Any] = {}
        while True:
            step = self.steps.get(history)
            if step is None:
                explorer = _Explorer(trial, self.steps, kinds, data=self.data)
                start = run_start(self.name, explorer)
                # Only its numbers are needed, and the model would take memory.
                placed = replace(start.placed, model=torch.nn.Identity())
                self.steps[explorer.history] = replace(start, placed=placed, exported=None)
                step = self.steps[history]
            if isinstance(step, Start):
                return TrialConfig(
                    task="function",
                    data=Data(path=self.data),
                    model=FunctionModel(backbone=self.name, placement=placement),
                    training=OwnTraining(
                        epochs=epochs or step.epochs,
                        batch_size=step.placed.batch_size,
                        parameters=parameters,
                        reports=metric,
                        chance=chance,
                    ),
                )
            if isinstance(step, Suggestion):
                value = parameters[step.args[0]] = step.draw(trial)
                history = (*history, None if step.method == "suggest_float" else value)
            else:
                placement = choices.placement(trial, step, kinds=kinds)
                history = (*history, None)

    def list_sites(self) -> Sequence[Site]:
        """Return the sites of the first model that was placed."""
        return next(step for step in self.steps.values() if not isinstance(step, Suggestion | Start))

    def middle(self) -> dict[str, Any]:
        """Return the middle of each range and the first of each choice, for the baseline."""
        middle = _Middle()
        run_start(self.name, StartTrial(middle, lambda placed: placed, data=self.data))
        return middle.values


class _Explorer(StartTrial):
    """A trial that records the calls of a start."""

    def __init__(self, source: Any, steps: dict[History, Step], kinds: Sequence[str], **options: Any) -> None:
        super().__init__(source, self.insert, **options)
        self.history: History = ()
        self.steps, self.kinds = steps, kinds

    def _suggest(self, method: str, name: str, *args: Any, **options: Any) -> Any:
        value = super()._suggest(method, name, *args, **options)
        self.steps[self.history] = Suggestion(method, (name, *args), options)
        self.history = (*self.history, None if method == "suggest_float" else value)
        return value

    def insert(self, placed: Placed) -> Placed:
        if self.history not in self.steps:
            self.steps[self.history] = list_sites(placed)
        listed: Any = self.steps[self.history]
        # Drawn in the order of the calls, as in later draws, so that a sampler returns the same values.
        choices.placement(self._source, listed, kinds=self.kinds)
        self.history = (*self.history, None)
        return placed


class _Middle:
    """A source of hyperparameters that returns the middle of each range."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def __getattr__(self, method: str) -> Any:
        return partial(self._suggest, method)

    def _suggest(self, method: str, *args: Any, **options: Any) -> Any:
        suggestion = Suggestion(method, args, options)
        value = self.values.setdefault(args[0], suggestion.middle)
        return suggestion.draw(optuna.trial.FixedTrial({args[0]: value}))  # which checks the range


def list_sites(placed: Placed) -> Sequence[Site]:
    """Return a model's sites of more than one position that replace nothing, or raise InputError."""
    example = repeat(placed.example, 2, torch.device("cpu"))
    listed = [site for site in sites(placed.model, example) if site.positions > 1 and not site.replaces]
    if not listed:
        raise InputError(
            f"{type(placed.model).__name__} has no feature map with several positions, so nothing can be "
            f"placed; give trial.place the model that has them"
        )
    return listed


def function_space(
    name: str,
    metric: Metric,
    *,
    chance: float | None = None,
    epochs: int | None = None,
    data: str | None = None,
) -> Space:
    """Return the space of the training function `name`.

    Trial 0 has the values in the attribute `baseline` of the function. Of the other hyperparameters it has
    the middle of the range or the first choice.

    `chance` is the score of guessing, and None if it is unknown. `epochs` replaces the number of the
    baseline's epochs that the function names. Raises InputError if the start of the function fails.
    """
    starts = Starts(name, data)
    draw = partial(starts.draw, metric=metric, chance=chance, epochs=epochs)
    own = getattr(find_function(name), "baseline", {})
    try:
        baseline = {choices.MODULES: 0, **starts.middle(), **own}
        draw(optuna.trial.FixedTrial(baseline))
    except optuna.TrialPruned:
        raise InputError(
            f"training function {name!r} raised TrialPruned for its baseline; name other values in its "
            f"attribute baseline"
        ) from None

    return Space(
        name=name,
        draw=draw,
        baseline=baseline,
        free=lambda: choices.free(starts.list_sites(), baseline=baseline),
        summary=f"Placements in the model of {name}, and its hyperparameters.",
    )
