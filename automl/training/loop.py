"""The training loop: a generator that yields one record of metrics an epoch, for any task and device.

It knows neither Ray nor MLflow nor the terminal. The caller takes the records and may stop between
any two of them; the state is then complete, and a new loop over it resumes from there.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import isfinite

import torch
from torch import Tensor, nn

from automl.tasks.base import Split, Task
from automl.tasks.evaluator import Evaluator
from automl.training.average import Average
from automl.training.clock import processor_time
from automl.training.optimiser import build_optimizer, learning_rate
from automl.training.step import Step, make_step
from automl.training.sync_norm import synchronise
from backbones import gates
from search.record import Metrics


class Diverged(ArithmeticError):
    """The loss is not a finite number: these hyperparameters cannot train this model."""


@dataclass
class TrainingState:
    """A training between two epochs.

    scaler: keeps float16 gradients in range; it does nothing in other precisions.
    average: of the weights, where the configuration asks for one.
    validated: what the last epoch's validation was evaluated by.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    epoch: int = 0
    average: Average | None = None
    validated: Evaluator | None = None

    @property
    def scored(self) -> nn.Module:
        """The model that is scored and kept: the average, where there is one."""
        return self.model if self.average is None else self.average.model


def start(task: Task, model: nn.Module | None = None) -> TrainingState:
    """A new training of the task's model, from the weights that its configuration names.

    model: that one, where it has been made, with the weights that it has.
    """
    runtime = task.runtime
    if model is None:
        model = task.model()
        task.initialise(model)
    if runtime.workers > 1:
        synchronise(model)
    scaler = torch.amp.GradScaler(runtime.device.type, enabled=runtime.dtype == torch.float16)
    training = task.config.training
    average = Average(model, training.average) if training.average else None
    return TrainingState(model, build_optimizer(model, training), scaler, average=average)


def fit(
    task: Task,
    state: TrainingState,
    time_ratio: float = 1.0,
    validation: float = 0.0,
    tell: Callable[[int, int, int], None] = lambda epoch, step, steps: None,
) -> Iterator[Metrics]:
    """Train from `state` until the configuration's epochs are spent, and yield the metrics of each epoch.

    time_ratio: how many times longer an epoch takes than the baseline's. The configuration's epochs are the
        baseline's; of its own a training gets as many as fit into the same time, the last one perhaps in
        part. The learning-rate schedule ends with the last step.
    validation: the part of an epoch's time that its validation takes, which an epoch in part has whole.
    tell: called after each step with the epoch, the step in it and the epoch's steps, all from 1.

    Yields `epoch` (1 for the first), `resource` (baseline's epochs that this much time is worth; the
    configuration's epochs at the end), `steps` so far, `train_loss` and the `train_NAME` of what the task's
    `learned` names, as means over the epoch's steps, the task's validation metrics as `NAME`, the learned
    `gate.SITE` of each attention, the `learning_rate` of the last step, `seconds` of wall time and, on
    a CPU, `processor_seconds`, which other load hardly changes. Raises Diverged when the loss or a metric is
    not finite, after the epoch in which it happened. The device is waited for once an epoch.
    """
    course = plan_course(task, time_ratio, validation)
    if task.runtime.compile in ("graphs", "inductor"):
        torch.compiler.reset()  # earlier trials of this process hold memory and count towards torch's limit
    step = make_step(task, state.model, state.optimizer, state.scaler)
    cpu = task.runtime.device.type == "cpu"
    while state.epoch * task.steps() < course.total:
        begun, worked = time.perf_counter(), processor_time()
        metrics = conclude_epoch(task, state, train_epoch(task, state, step, course, tell), course)
        yield {
            **metrics,
            "seconds": time.perf_counter() - begun,
            **({"processor_seconds": processor_time() - worked} if cpu else {}),
        }


@dataclass(frozen=True)
class Course:
    """The steps of a training, and what part of its time each of them comes at.

    shared partial training: steps before the placement is put in, of a model without attention; 0 where it
        is there from the start. share: the part of the time that these take. total: all steps. epoch: steps
        of an epoch.
    """

    shared_training: int
    share: float
    total: int
    epoch: int

    @property
    def epochs(self) -> float:
        """The epochs that the placement is trained for; those of a shared partial training do not count."""
        return (self.total - self.shared_training) / self.epoch

    def part(self, steps: int) -> float:
        """Of the whole training's time, 0 to 1, that so many steps from its beginning take."""
        if steps < self.shared_training:
            return self.share * steps / self.shared_training
        return self.share + (1 - self.share) * (
            (steps - self.shared_training) / (self.total - self.shared_training)
        )


def plan_course(task: Task, time_ratio: float = 1.0, validation: float = 0.0) -> Course:
    """Of a training whose epochs take `time_ratio` times as long as the baseline's, once attention is in it.

    validation: the part of an epoch's time that its validation takes; that of an epoch in part takes as long.
    """
    training = task.config.training
    shared_training = training.insert_at * task.steps()
    epochs = (training.epochs - training.insert_at) / time_ratio
    whole = int(epochs + 1e-9)
    rest = (epochs - whole - validation) / (1 - validation) if validation < 1 else 0.0
    left = max(1, round((whole + max(0.0, rest)) * task.steps()))
    return Course(shared_training, training.insert_at / training.epochs, shared_training + left, task.steps())


def train_epoch(
    task: Task, state: TrainingState, step: Step, course: Course, tell: Callable[[int, int, int], None]
) -> Tensor:
    """The next epoch of a training, or what is left of it. tell: as in `fit`.

    Returns what `Task.learn` does of each step, over all workers, `(steps, values)`, still on the device.
    """
    done = state.epoch * task.steps()
    steps = min(task.steps(), course.total - done)
    values = torch.zeros(steps, 1 + len(task.learned), device=task.runtime.device)
    state.model.train()
    for i, batch in enumerate(islice(task.batches(state.epoch), steps)):
        values[i] = step(batch, rate_at(task, done + i, course))
        if state.average is not None:
            state.average.update(state.model, done + i + 1)
        tell(state.epoch + 1, i + 1, steps)
    step.finish()
    return task.runtime.total(values) / task.runtime.workers


def conclude_epoch(task: Task, state: TrainingState, values: Tensor, course: Course) -> Metrics:
    """What `fit` yields of an epoch but its time, after validation; counts the epoch.

    values: of its steps, as `train_epoch` returns them. Raises Diverged.
    """
    state.validated = task.evaluator("validation")
    scores = evaluate(task, state.scored, evaluator=state.validated)
    learned = {f"gate.{site}": gate for site, gate in gates(state.scored).items()}
    # The one synchronisation of the epoch.
    means = {f"train_{name}": mean for name, mean in zip(task.learned, values[:, 1:].mean(0), strict=True)}
    parts = [value.float().view(1) for value in (*means.values(), *scores.values(), *learned.values())]
    numbers = torch.cat([values[:, 0], *parts]).tolist()
    history = numbers[: len(values)]
    metrics = dict(zip((*means, *scores, *learned), numbers[len(values) :], strict=True))
    for i, loss in enumerate(history, start=1):
        if not isfinite(loss):
            raise Diverged(f"the training loss became {loss} in epoch {state.epoch + 1}, step {i}")
    for name, value in metrics.items():  # an accuracy is finite whatever the weights have become
        if not isfinite(value) and name not in task.may_be_nan:
            raise Diverged(f"the validation {name} became {value} in epoch {state.epoch + 1}")
    steps = state.epoch * task.steps() + len(history)
    state.epoch += 1
    return {
        "epoch": state.epoch,
        "resource": task.config.training.epochs * course.part(steps),
        "steps": steps,
        "train_loss": sum(history) / len(history),
        **metrics,
        "learning_rate": rate_at(task, steps - 1, course),
    }


def rate_at(task: Task, step: int, course: Course) -> float:
    """The learning rate of a step, counted from the first of a training."""
    training = task.config.training
    return training.learning_rate * learning_rate(training, course.part(step))


@torch.inference_mode()
def evaluate(
    task: Task, model: nn.Module, split: Split = "validation", evaluator: Evaluator | None = None
) -> dict[str, Tensor]:
    """The task's metrics on a split, in the precision of training, still on the device.

    evaluator: as in `Task.evaluate`.
    """
    model.eval()
    with task.runtime.autocast():
        return task.evaluate(model, split, evaluator)
