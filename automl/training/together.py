"""Several trainings of one architecture, a seed each, in one vectorised step.

A small model leaves most of a GPU idle; several at once do not. The weights of all lie in one tensor each,
`(trainings, ...)`, and `torch.func.vmap` makes of each operation one for all. Data, order, optimiser and
learning rates of a training are what they would be alone, and so, but for rounding, are its weights. On a CPU
this is slower than one after the other; `benchmarks/bench_together.py` measures what it is on a GPU.

Source: S. Wang et al., Horizontally Fused Training Array (2021), arXiv 2102.02344.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils._pytree import tree_map

from attention import InputError
from automl.tasks.base import Batch, Task
from automl.training.loop import Course, Diverged, TrainingState, conclude_epoch, plan_course, rate_at
from automl.training.step import Step
from search.record import Metrics


def fit_together(
    tasks: Sequence[Task],
    states: Sequence[TrainingState],
    time_ratio: float = 1.0,
    validation: float = 0.0,
    tell: Callable[[int, int, int], None] = lambda epoch, step, steps: None,
) -> Iterator[list[Metrics]]:
    """`automl.training.loop.fit` of several trainings at once.

    tasks: of one configuration but for the seed. states: at the same epoch. The others as in `fit`.

    Yields the metrics of each training, an epoch at a time; `seconds` are its share. Between two epochs each
    state is complete, and may go on alone. What a model draws by itself, such as dropout, it draws otherwise
    than alone. Raises InputError for trainings that are of different configurations or epochs, share an
    epoch between workers, have batches of different shapes, are in float16, or have a model that `vmap`
    cannot take; Diverged, once all states are complete, where one of them has diverged.
    """
    _check(tasks, states)
    task = tasks[0]
    course = plan_course(task, time_ratio, validation)
    step = StepTogether(task, states)
    while states[0].epoch * task.steps() < course.total:
        begun = time.perf_counter()
        values = _train_epoch(tasks, states, step, course, tell)
        found: list[Metrics] = []
        diverged: list[str] = []
        for each, state, own in zip(tasks, states, values.unbind(1), strict=True):
            try:
                found.append(conclude_epoch(each, state, own, course))
            except Diverged as error:
                state.epoch += 1
                diverged.append(f"{error} (seed {each.config.seed})")
        if diverged:
            raise Diverged("; ".join(diverged))
        seconds = (time.perf_counter() - begun) / len(tasks)
        yield [{**metrics, "seconds": seconds} for metrics in found]


def _train_epoch(
    tasks: Sequence[Task],
    states: Sequence[TrainingState],
    step: "StepTogether",
    course: Course,
    tell: Callable[[int, int, int], None],
) -> Tensor:
    """The next epoch of all. Returns what `Task.learn` does of each step, `(steps, trainings, values)`."""
    task, epoch = tasks[0], states[0].epoch
    done = epoch * task.steps()
    steps = min(task.steps(), course.total - done)
    values = torch.zeros(steps, len(tasks), 1 + len(task.learned), device=task.runtime.device)
    batches = zip(*(each.batches(epoch) for each in tasks), strict=True)
    for i, drawn in enumerate(islice(batches, steps)):
        batch = tree_map(lambda *parts: torch.stack(parts), *drawn)
        values[i] = step(batch, rate_at(task, done + i, course))
        if task.config.training.average:
            step.write_models()
            for state in states:
                if state.average is not None:
                    state.average.update(state.model, done + i + 1)
        tell(epoch + 1, i + 1, steps)
    step.finish()
    step.write_models()
    step.write_moments()
    return values


class StepTogether(Step):
    """A step of several trainings. It returns what `Task.learn` does of each, `(trainings, values)`.

    weights, buffers: of all models by name, each `(trainings, ...)`. A batch is one of each, stacked alike.
    """

    def __init__(self, task: Task, states: Sequence[TrainingState]) -> None:
        self.states = states
        self.weights, self.buffers = stack_module_state([state.model for state in states])
        self.shape = _Loss(task, copy.deepcopy(states[0].model).train())
        for module in self.shape.modules():
            if isinstance(module, _SpectralNorm):
                module._power_method = MethodType(_power_method, module)  # type: ignore[method-assign]
        super().__init__(task, self.shape, self._optimizer(), states[0].scaler)

    def learn(self, batch: Batch) -> Tensor:
        def one(weights: dict[str, Tensor], buffers: dict[str, Tensor], batch: Batch) -> Tensor:
            named = {f"model.{name}": value for name, value in (weights | buffers).items()}
            values: Tensor = functional_call(self.shape, named, (batch,))
            return values

        try:
            return vmap(one, randomness="different")(self.weights, self.buffers, batch)
        except RuntimeError as error:
            if not any(word in str(error) for word in ("vmap", "Batching rule")):
                raise
            backbone, reason = self.task.config.model.backbone, str(error).splitlines()[0]
            raise InputError(
                f"trainings of {backbone} cannot run together; train one after the other. ({reason})"
            ) from error

    def parameters(self) -> list[nn.Parameter]:
        return list(self.weights.values())

    def clip(self, most: float) -> None:
        """The length is that of each training's own gradients, as in `torch.nn.utils.clip_grad_norm_`."""
        gradients = [weight.grad for weight in self.parameters() if weight.grad is not None]
        lengths = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
        scale = (most / (lengths + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient.mul_(scale.view(-1, *[1] * (gradient.ndim - 1)))

    def _optimizer(self) -> torch.optim.Optimizer:
        """The first training's, over all weights, with the moments of all."""
        first = self.states[0]
        names = {parameter: name for name, parameter in first.model.named_parameters()}
        groups = [
            {**group, "params": [self.weights[names[parameter]] for parameter in group["params"]]}
            for group in first.optimizer.param_groups
        ]
        kind: Callable[..., torch.optim.Optimizer] = type(first.optimizer)
        optimizer = kind(groups)
        for name, weight in self.weights.items():
            kept = [s.optimizer.state.get(s.model.get_parameter(name), {}) for s in self.states]
            optimizer.state[weight] = {
                key: torch.stack([each[key] for each in kept]) if _is_moment(key, value) else _copy(value)
                for key, value in kept[0].items()
            }
        return optimizer

    @torch.no_grad()
    def write_models(self) -> None:
        """Give each model its weights and buffers."""
        for i, state in enumerate(self.states):
            for name, own in (*state.model.named_parameters(), *state.model.named_buffers()):
                own.copy_((self.weights if name in self.weights else self.buffers)[name][i])

    def write_moments(self) -> None:
        """Give each optimiser its moments."""
        for name, weight in self.weights.items():
            for i, state in enumerate(self.states):
                state.optimizer.state[state.model.get_parameter(name)] = {
                    key: value[i].clone() if _is_moment(key, value) else _copy(value)
                    for key, value in self.optimizer.state[weight].items()
                }


class _Loss(nn.Module):
    """What `Task.learn` returns of a batch, as a module, which `functional_call` takes."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Batch) -> Tensor:
        return self.task.learn(self.model, batch)


def _power_method(norm: _SpectralNorm, weight: Tensor, iterations: int) -> None:
    """torch's own, which writes to `out=`; vmap has no rule for that."""
    with torch.no_grad():
        for _ in range(iterations):
            norm._u.copy_(F.normalize(torch.mv(weight, norm._v), dim=0, eps=norm.eps))
            norm._v.copy_(F.normalize(torch.mv(weight.mH, norm._u), dim=0, eps=norm.eps))


def _is_moment(key: str, value: object) -> bool:
    """Rather than the count of steps, which is the same in all trainings."""
    return isinstance(value, Tensor) and key != "step"


def _copy(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value


def _check(tasks: Sequence[Task], states: Sequence[TrainingState]) -> None:
    task = tasks[0]
    runtime = task.runtime
    reasons = {
        "must be of one configuration but for the seed": any(
            each.config.change(seed=0) != task.config.change(seed=0) for each in tasks
        ),
        "must be at the same epoch": len({state.epoch for state in states}) > 1,
        "take one worker each": runtime.workers > 1,
        "need batches of one shape": task.shapes_vary,
        "cannot be in float16, whose scale is one training's own": runtime.dtype == torch.float16,
    }
    for reason, wrong in reasons.items():
        if wrong:
            raise InputError(f"trainings that run together {reason}; train one after the other")
