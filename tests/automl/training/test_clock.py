"""Every timing warms up first: a first run that is ten times as slow changes no measurement."""

import statistics
from collections.abc import Callable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from automl.costs import profile, time_ratio
from automl.costs import profile as model
from automl.export import checks
from automl.task.subject import Subject
from automl.training import clock
from automl.training.clock import LEAST, SECONDS, time_in_turn, time_rounds
from automl.trials import measurements
from backbones.example import sum_outputs
from tests.helpers.automl_cases import HERE, Regression

COLD = 10.0


class Machine:
    """A fake clock that only advances in `run`: by a second, or by `COLD` seconds the first time."""

    def __init__(self) -> None:
        self.now, self.warm = 0.0, set[object]()

    def run(self, what: object) -> None:
        self.now += 1.0 if what in self.warm else COLD
        self.warm.add(what)

    def layer(self) -> nn.Module:
        """Return a model whose first forward pass and first backward pass are slow."""
        machine = self

        class Layer(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                machine.run((self, self.training, torch.is_grad_enabled()))
                y = super().forward(x)
                if y.requires_grad:
                    y.register_hook(lambda gradient: machine.run(self))
                return y

        return Layer(3, 1)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    fake = Machine()
    clocks = ("perf_counter", "thread_time", "process_time")
    monkeypatch.setattr(clock, "time", SimpleNamespace(**dict.fromkeys(clocks, lambda: fake.now)))
    return fake


def _task(machine: Machine) -> Regression:
    task = Regression(batch_size=40, epochs=1000)  # of which measuring may take 5 %
    task.model = machine.layer  # type: ignore[method-assign]
    return task


def _costs(machine: Machine, _: pytest.MonkeyPatch) -> Iterator[tuple[float, float]]:
    subject = Subject(
        name="line",
        build=machine.layer,
        example=lambda n: torch.zeros(n, 3),
        loss=sum_outputs,
        description="",
    )
    models = {name: machine.layer() for name in ("plain", "placement")}
    for measured in (models, {"plain": models["plain"]}):
        for cost in model.measure_costs(measured, subject, 2, HERE).values():
            yield cost.step or 0.0, 2 / 2


def _latency(machine: Machine, _: pytest.MonkeyPatch) -> Iterator[tuple[float, float]]:
    serves = [lambda: machine.run("plain"), lambda: machine.run("placed")]
    for latency in profile.measure_latencies(serves, HERE, 10):
        yield latency, 1e3


def _time_ratio(machine: Machine, _: pytest.MonkeyPatch) -> Iterator[tuple[float, float]]:
    steps, passes = 2, 1
    yield time_ratio.measure_own_epoch(_task(machine)).epoch, 2 * steps + passes
    measured = time_ratio.measure_time_ratio(_task(machine), _task(machine), time_ratio.Timings())
    yield measured.high, 1
    yield measured.epoch, 2 * steps + passes


def _speed(machine: Machine, _: pytest.MonkeyPatch) -> Iterator[tuple[float, float]]:
    measured = checks.measure_speed(
        lambda inputs: machine.run(("a", len(inputs["x"]))),  # type: ignore[arg-type, return-value]
        {"x": np.zeros((100, 3))},
    )
    yield measured.latency, 1e3
    yield measured.throughput, checks.BATCH
    assert ("a", checks.BATCH) in machine.warm


def _pace(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[float, float]]:
    task = _task(machine)
    monkeypatch.setattr(measurements, "open_task", lambda *_: task)
    arguments: dict[str, Any] = {"precision": "auto", "compile": "auto"}
    measured = measurements.PaceWorker(task.config, {}, 1, 0, arguments).measure(0.0)
    yield measured.step, 2
    yield measured.validation, 1


Timing = Callable[[Machine, pytest.MonkeyPatch], Iterator[tuple[float, float]]]


@pytest.mark.parametrize("timing", [_latency, _time_ratio, _speed, _pace, _costs])
def test_a_slow_first_run_does_not_count(
    timing: Timing, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for measured, expected in timing(machine, monkeypatch):
        assert measured == pytest.approx(expected)


def test_rounds_alternate_and_end_early_if_they_are_slow() -> None:
    ran: list[int] = []

    def timing(i: int) -> Callable[[], float]:
        return lambda: ran.append(i) or SECONDS / LEAST  # type: ignore[func-returns-value]

    assert len(list(islice(time_in_turn([timing(1), timing(2), timing(3)]), 2))) == 2
    assert ran == [1, 2, 3, 1, 2, 3, 3, 2, 1]
    assert len(time_rounds([timing(1)], 100)) == LEAST
    assert len(time_rounds([lambda: 0.0], 100)) == 100
    assert statistics.fmean(time_rounds([lambda: 1.0], LEAST)[0]) == 1.0
