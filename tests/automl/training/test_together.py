"""Trainings in one vectorised step, against the same trainings one after the other.

In float64, since what is rounded otherwise grows from step to step.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from automl_cases import CPU, EVERY_ATTENTION, timeless, tiny
from torch import Tensor
from torch.utils._pytree import tree_map

from attention import InputError
from automl.config.runtime import Runtime
from automl.tasks import Task, open_task
from automl.training.loop import Diverged, TrainingState, fit, start
from automl.training.together import fit_together

SEEDS = (3, 4, 5)
TWO = {"epochs": 2}


def doubled(value: Any) -> Any:
    return tree_map(lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, value)


def exact(seed: int, *, precision: str = "fp32", **parts: Any) -> Task:
    """A task whose model, batches and inputs are in float64."""
    task = open_task(tiny(seed=seed, **parts), Runtime(device=CPU, precision=precision))
    model, batches, split = task.model, task.batches, task.parts

    def double(made: Callable[[Any], Iterator[Any]], asked: Any) -> Iterator[Any]:
        return map(doubled, made(asked))

    task.model = lambda: model().double()
    task.batches = partial(double, batches)
    task.parts = lambda asked: (
        type(part)(part.index, doubled(part.inputs), part.targets) for part in split(asked)
    )
    return task


def begun(**parts: Any) -> tuple[list[Task], list[TrainingState]]:
    tasks = [exact(seed, **parts) for seed in SEEDS]
    return tasks, [start(task) for task in tasks]


def kept(state: TrainingState) -> dict[str, Any]:
    """All that a training goes on from."""
    average = {} if state.average is None else state.average.model.state_dict()
    return {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict()["state"],
        "average": average,
        "epoch": state.epoch,
    }


def same(one: TrainingState, other: TrainingState) -> None:
    torch.testing.assert_close(kept(one), kept(other), rtol=1e-9, atol=1e-11)


PARTS: dict[str, tuple[float, dict[str, Any]]] = {
    "every-attention": (1.3, {"model": {"placement": EVERY_ATTENTION}, "training": TWO}),
    "sgd": (1.0, {"training": {**TWO, "optimizer": "sgd", "clip": 0.5}}),
    "accumulate": (1.3, {"training": {**TWO, "accumulate": 3}}),
    "average": (1.0, {"training": {**TWO, "average": 0.9}}),
    "mixup": (1.0, {"training": {"epochs": 1, "mixup": 0.4, "class_weights": "balanced"}}),
}


@pytest.mark.parametrize(
    ("time_ratio", "parts"),
    [
        pytest.param(*parts, id=name, marks=() if name in ("every-attention", "mixup") else pytest.mark.long)
        for name, parts in PARTS.items()
    ],
)
def test_each_is_what_it_would_be_alone(time_ratio: float, parts: dict[str, Any]) -> None:
    tasks, alone = begun(**parts)
    expected = [timeless(fit(task, state, time_ratio)) for task, state in zip(tasks, alone, strict=True)]
    _, together = begun(**parts)
    found = list(zip(*fit_together(tasks, together, time_ratio), strict=True))
    for mine, theirs, one, other in zip(found, expected, together, alone, strict=True):
        for record, own in zip(timeless(mine), theirs, strict=True):
            assert record == pytest.approx(own, rel=1e-5, abs=1e-6)
        same(one, other)


def test_one_goes_on_alone_and_alone_ones_go_on_together() -> None:
    tasks, alone = begun(training={"epochs": 3})
    for task, state in zip(tasks, alone, strict=True):
        list(fit(task, state))
    _, states = begun(training={"epochs": 3})
    for task, state in zip(tasks, states, strict=True):
        next(fit(task, state))
    next(fit_together(tasks, states))
    next(fit(tasks[0], states[0]))
    same(states[0], alone[0])


def test_one_that_diverges_says_so_when_all_states_are_complete() -> None:
    tasks, states = begun(training=TWO)
    with torch.no_grad():
        next(states[1].model.parameters()).fill_(float("nan"))
    with pytest.raises(Diverged, match=r"training loss became nan in epoch 1, step 1 \(seed 4\)"):
        next(fit_together(tasks, states))
    _, alone = begun(training=TWO)
    next(fit(tasks[2], alone[2]))
    same(states[2], alone[2])
    assert [state.epoch for state in states] == [1, 1, 1]


def test_trainings_that_cannot_run_together() -> None:
    tasks, states = begun(training=TWO)
    other = exact(9, training=TWO, model={"placement": EVERY_ATTENTION})
    refused = partial(pytest.raises, InputError)
    with refused(match="of one configuration but for the seed; train one after the other"):
        next(fit_together([*tasks[1:], other], states))
    with refused(match="cannot be in float16"):
        next(fit_together([exact(seed, training=TWO, precision="fp16") for seed in SEEDS], states))
    tasks[0].shapes_vary = True
    with refused(match="need batches of one shape"):
        next(fit_together(tasks, states))
    tasks[0].shapes_vary = False
    list(islice(fit(tasks[1], states[1]), 1))
    with refused(match="must be at the same epoch"):
        next(fit_together(tasks, states))


def test_a_model_that_vmap_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, states = begun(training=TWO)
    monkeypatch.setattr(tasks[0], "learn", lambda model, batch: model(batch[0]).sum().item())
    with pytest.raises(InputError, match="trainings of xresnet18 cannot run together"):
        next(fit_together(tasks, states))
