"""The training loop: a generator that yields metrics once or several times an epoch, for any task and device.

It does not know Ray, MLflow or the terminal. The caller may stop between any two records. The state is then
complete, and a new loop continues from it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count, islice
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from automl.config.device import forked_generators
from automl.task.base import Batch, Task
from automl.task.evaluator import Evaluator
from automl.task.task_data import Split
from automl.training.clock import Stopwatch
from automl.training.optimiser import build_optimizer, compute_relative_rate
from automl.training.step import Step, make_step
from automl.training.sync_norm import synchronise
from backbones import gates
from search.record import Metrics


class Diverged(ArithmeticError):
    """The loss is not a finite number: these hyperparameters cannot train this model."""


class NotStopped(BaseException):
    """The user's own code continues although its trial has ended. No `except Exception` hides it."""


class TooSlow(ArithmeticError):
    """Too few epochs fit into the baseline's time: `epochs` instead of at least `least`."""

    def __init__(self, epochs: float, least: float, reason: str) -> None:
        super().__init__(reason)
        self.violations = {"steps": least / epochs - 1}


@dataclass
class TrainingState:
    """State of a training between two steps of the optimiser.

    Attributes:
        scaler: Keeps float16 gradients in range. It does nothing in other precisions.
        epoch: Number of finished epochs.
        values: Values of `Task.learn` for each step of the unfinished epoch, `(steps, values)`. None between
            two epochs.
        watch: Time since the last validation.
        average: Average of the weights, a `timm.utils.ModelEmaV3`, if the configuration has one.
        validated: Evaluator of the last epoch's validation.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    epoch: int = 0
    average: Any = None
    validated: Evaluator | None = None
    values: Tensor | None = None
    watch: Stopwatch = field(default_factory=Stopwatch)

    @property
    def steps(self) -> int:
        """Return the number of steps of the unfinished epoch."""
        return 0 if self.values is None else len(self.values)

    @property
    def scored(self) -> nn.Module:
        """Return the model that is scored and kept: the averaged one if there is one."""
        return self.model if self.average is None else self.average.module


def start(task: Task, model: nn.Module | None = None) -> TrainingState:
    """Create the state of a new training. The task's model is built and initialised if it is None."""
    runtime = task.runtime
    if model is None:
        model = task.model()
        task.initialise(model)
    if runtime.workers > 1:
        synchronise(model)
    scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.dtype == torch.float16)
    training = task.config.training
    average: Any = None
    if training.average:  # of weights and buffers. Its decay grows with the steps up to that value.
        from timm.utils import ModelEmaV3

        with torch.random.fork_rng(devices=[]):
            average = ModelEmaV3(model, decay=training.average, use_warmup=True)
    return TrainingState(model, build_optimizer(model, training), scaler, average=average)


def fit(
    task: Task,
    state: TrainingState,
    time_ratio: float = 1.0,
    validation: float = 0.0,
    tell: Callable[[int, int, int], None] = lambda epoch, step, steps: None,
    keep: Callable[[], None] = lambda: None,
) -> Iterator[Metrics]:
    """Train until the configuration's epochs are used up, and yield the metrics after each validation.

    The configuration counts the baseline's epochs. A training gets as many of its own epochs as fit into the
    same time, of which the last may be partial. The learning-rate schedule ends with the last step. The
    device is synchronised once per validation. Validations within an epoch do not change the training.

    Args:
        task: The task.
        state: State to train from. It is updated.
        time_ratio: Time of an epoch divided by the baseline's.
        validation: Fraction of an epoch's time that its validations take. A partial epoch has a whole
            validation.
        tell: Called after each step with the epoch, its step and its number of steps. All count from 1.
        keep: Called within an epoch after each step of the optimiser. The state is then complete.

    Yields:
        Metrics of an epoch, or of its steps so far:

        - `epoch`, 1 for the first, and a fraction within an epoch
        - `resource`, the baseline's epochs that take the same time. It ends at the configuration's epochs
        - `steps` so far
        - `train_loss` and `train_NAME` for the names in the task's `learned`, as means over the epoch's steps
        - the task's validation metrics as `NAME`
        - `gate.SITE`, the learned gate of each module
        - `learning_rate` of the last step
        - `seconds` since the last record and, on a CPU, `processor_seconds`, which other load hardly changes

    Raises:
        Diverged: The loss or a metric is not finite. Raised after the steps in which it happened.
    """
    course = plan_course(task, time_ratio, validation)
    left = course.total - state.epoch * task.steps() - state.steps
    cpu = task.runtime.device.type == "cpu"
    with closing(make_step(task, state.model, state.optimizer, state.scaler, left)) as step:
        while state.epoch * task.steps() < course.total:
            for values in train_epoch(task, state, step, course, tell, keep):
                metrics = validate(task, state, values, course)
                seconds, processor_seconds = state.watch.read()
                yield {
                    **metrics,
                    "seconds": seconds,
                    **({"processor_seconds": processor_seconds} if cpu else {}),
                }
                state.watch = Stopwatch()


@dataclass(frozen=True)
class Course:
    """Steps of a training.

    Attributes:
        total: Number of all steps.
        epoch: Number of steps of an epoch.
        validated: Numbers of steps of an epoch after which it is validated. The last one is all of them.
    """

    total: int
    epoch: int
    validated: Sequence[int]

    @property
    def epochs(self) -> float:
        """Return the number of epochs."""
        return self.total / self.epoch

    def fraction(self, steps: int) -> float:
        """Return the fraction of the training's time, 0 to 1, that its first `steps` steps take."""
        return steps / self.total


def plan_course(task: Task, time_ratio: float = 1.0, validation: float = 0.0) -> Course:
    """Plan the steps of a training, as `fit` counts them. An epoch has equal parts with a validation each."""
    training, steps = task.config.training, task.steps()
    updates = ceil(steps / training.accumulate)  # A part ends with a step of the optimiser.
    parts = min(task.runtime.validations, updates)
    ends = [min(steps, training.accumulate * ceil(i * updates / parts)) for i in range(1, parts + 1)]
    fitting = parts * training.epochs / time_ratio
    whole = int(fitting + 1e-9)
    rest = (fitting - whole - validation) / (1 - validation) if validation < 1 else 0.0
    total = max(1, round((whole + max(0.0, rest)) / parts * steps * task.config.longer))
    return Course(total, steps, ends)


def train_epoch(
    task: Task,
    state: TrainingState,
    step: Step,
    course: Course,
    tell: Callable[[int, int, int], None],
    keep: Callable[[], None] = lambda: None,
) -> Iterator[Tensor]:
    """Train the next epoch, or its remaining steps, and pause where it is validated.

    Yields the values of `Task.learn` for each of its steps so far, averaged over all workers, `(steps,
    values)`, on the device.
    """
    done = state.epoch * task.steps()
    steps = min(task.steps(), course.total - done)
    values = torch.zeros(steps, 1 + len(task.learned), device=task.runtime.device)
    if state.values is not None:
        values[: state.steps] = state.values
    if state.steps in (0, *course.validated):
        state.watch = Stopwatch()
    task.set_training(state.model)
    for i, batch in enumerate(islice(task.batches(state.epoch), state.steps, steps), state.steps):
        values[i] = step(batch, rate_at(task, done + i, course))
        if state.average is not None:
            state.average.update(state.model, step=done + i + 1)
        tell(state.epoch + 1, i + 1, steps)
        if i + 1 < steps and i + 1 in course.validated:
            state.values = task.runtime.total(values[: i + 1].clone()) / task.runtime.workers
            yield state.values
            task.set_training(state.model)
        elif i + 1 < steps and not step.waiting:
            state.values = values[: i + 1]
            keep()
    step.finish()
    state.values = None
    yield task.runtime.total(values) / task.runtime.workers


def validate(task: Task, state: TrainingState, values: Tensor, course: Course) -> Metrics:
    """Validate, count an epoch at its end, and return the metrics as `fit` yields them, without the times.

    `values` are those of `train_epoch`. Raises `Diverged` if the loss or a metric is not finite.
    """
    state.validated = task.evaluator("validation")
    scores = evaluate(task, state.scored, evaluator=state.validated)
    learned = {f"gate.{site}": gate for site, gate in gates(state.scored).items()}
    # This is the only synchronisation since the last validation.
    means = {f"train_{name}": mean for name, mean in zip(task.learned, values[:, 1:].mean(0), strict=True)}
    scalars = [value.to(values).view(1) for value in (*means.values(), *scores.values(), *learned.values())]
    numbers = torch.cat([values[:, 0], *scalars]).tolist()
    history = numbers[: len(values)]
    metrics = dict(zip((*means, *scores, *learned), numbers[len(values) :], strict=True))
    for i, loss in enumerate(history, start=1):
        if not isfinite(loss):
            raise Diverged(f"the training loss became {loss} in epoch {state.epoch + 1}, step {i}")
    # Metrics are checked after the loss, since an accuracy is finite for any weights.
    for name, value in metrics.items():
        if not isfinite(value) and name not in task.may_be_nan:
            raise Diverged(f"the validation {name} became {value} in epoch {state.epoch + 1}")
    steps = state.epoch * task.steps() + len(history)
    part, parts = 1 + sum(end < len(history) for end in course.validated), len(course.validated)
    epoch = state.epoch + (1 if part == parts else part / parts)
    state.epoch += state.values is None
    return {
        "epoch": epoch,
        "resource": task.config.training.epochs * course.fraction(steps),
        "steps": steps,
        "train_loss": sum(history) / len(history),
        **metrics,
        "learning_rate": rate_at(task, steps - 1, course),
    }


def rate_at(task: Task, step: int, course: Course) -> float:
    """Return the learning rate of a step, counted from the first step of the training."""
    training = task.config.training
    return training.learning_rate * compute_relative_rate(training, course.fraction(step))


@torch.inference_mode()
def evaluate(
    task: Task, model: nn.Module, split: Split = "validation", evaluator: Evaluator | None = None
) -> dict[str, Tensor]:
    """Compute the task's metrics on a split, in training precision. They stay on the device."""
    model.eval()
    # A loader of the user's own may draw. The training continues with the numbers it would have had.
    with forked_generators(task.runtime.device), task.runtime.autocast():
        return task.evaluate(model, split, evaluator)


def endless_batches(task: Task) -> Iterator[Batch]:
    """Yield the batches of one epoch after another, without end."""
    for epoch in count():
        yield from task.batches(epoch)
