"""Runs the start of a training function, which declares its model, hyperparameters and epochs."""

import ast
import inspect
import io
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import wraps
from textwrap import dedent
from typing import Any

import optuna

from automl.base.errors import InputError, describe_error
from automl.base.loading import load_object
from automl.config.device import kept_generators, seed_all
from automl.tasks.function.models import Exported, Placed
from automl.tasks.function.trial import Epochs, Trial
from search.config.tasks import TASKS

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
    raise InputError(f"training function {name!r} ended without trial.epochs; {_advise_loop(function)}")


def _advise_loop(function: TrainingFunction) -> str:
    """Return how to write the loop over epochs, from the function's own loop over a range if it has one."""
    with suppress(OSError, TypeError, SyntaxError, ValueError, IndexError):
        (definition,) = ast.parse(dedent(inspect.getsource(inspect.unwrap(function)))).body
        trial = next(iter(inspect.signature(function).parameters))
        for loop in ast.walk(definition):
            if isinstance(loop, ast.For) and (
                count := re.fullmatch(r"range\((.+)\)", ast.unparse(loop.iter))
            ):
                epoch = ast.unparse(loop.target)
                return f"instead of `range({count[1]})` write `for {epoch} in {trial}.epochs({count[1]})`"
    return "loop over `for epoch in trial.epochs(20)`"
