"""Steps that are captured or compiled. On a CPU, a "graph" runs the same operations again."""

import inspect
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.training import step
from automl.training.loop import fit, start
from automl.training.step import WARM_UP, FastStep, Pace, Regions
from tests.helpers.automl_cases import CPU, HERE, Regression

SLOW = Pace(seconds=1.0, waiting=0.0)  # a pace at which a capture pays


@pytest.fixture
def replays(monkeypatch):
    """Let the CPU have graphs, whose replays repeat the captured function, and count them in the list."""
    count = []

    def capture(run, device):
        groups = inspect.getclosurevars(run).nonlocals["step"].optimizer.param_groups
        rate_tensors = [group["lr"] for group in groups]
        values = torch.zeros(1)

        def replay():
            count.append(1)
            kept = [group["lr"] for group in groups]
            for group, place in zip(groups, rate_tensors, strict=True):
                assert isinstance(place, torch.Tensor), "a number would stay that of the capture"
                group["lr"] = place
            values.copy_(run())
            for group, rate in zip(groups, kept, strict=True):
                group["lr"] = rate

        return replay, values

    monkeypatch.setattr(step, "capture", capture)
    monkeypatch.setattr(step, "synchronising_calls", lambda run: (run(), []))
    monkeypatch.setattr(step, "is_gpu", lambda device: True)
    monkeypatch.setattr(FastStep, "_time", _slow)
    return count


def _slow(self, batch, rate):
    batch, rate = yield step.Step.__call__(self, batch, rate)
    return SLOW, batch, rate


def train(compile_mode="graphs", task=None, **training):
    task = Regression(epochs=3, learning_rate=0.05, **training) if task is None else task
    task.runtime = Runtime(device=CPU, precision="fp32", compile=compile_mode)
    state = start(task)
    return [record["train_loss"] for record in fit(task, state)], state


@pytest.mark.parametrize(
    "training", [{}, {"optimizer": "sgd"}, {"optimizer": "adam", "clip": 0.1}, {"average": 0.9}]
)
@pytest.mark.parametrize("compile_mode", ["graphs", "auto"])
def test_replayed_steps_train_like_others(replays, compile_mode, training):
    expected, plain = train("off", **training)
    losses, state = train(compile_mode, **training)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(replays) == 30 - WARM_UP - 2
    for group, other in zip(state.optimizer.param_groups, plain.optimizer.param_groups, strict=True):
        assert {**group, "params": 0} == {**other, "params": 0}, "a checkpoint is that of any other step"


def test_batches_of_another_shape_run_step_by_step(replays):
    task = Regression(epochs=1)
    task.runtime = Runtime(device=CPU, precision="fp32", compile="graphs")
    state = start(task)
    run = step.make_step(task, state.model, state.optimizer, state.scaler)
    for size in (8, 8, 8, 8, 8, 8, 8, 4, 8):
        before = [p.clone() for p in state.model.parameters()]
        run((task.x[:size], task.y[:size]), 0.1)
        assert any(not torch.equal(a, b) for a, b in zip(before, state.model.parameters(), strict=True))
    assert len(replays) == 3


class Obstinate(nn.Linear):
    """A layer whose steps a graph could not repeat."""

    def __init__(self, kind):
        super().__init__(3, 1)
        self.kind, self.count = kind, 0

    def forward(self, x):
        if self.kind == "counter":
            self.count += 1
        if self.kind == "random":
            random.random()
        if self.kind == "numpy":
            np.random.rand()
        if self.kind == "torch":
            torch.rand(1)
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("counter", "changes the model.count on the host"),
        ("random", "random numbers of Python"),
        ("numpy", "random numbers of NumPy"),
        ("torch", "random numbers of torch"),
    ],
)
def test_changes_on_the_host_are_not_replayed(replays, kind, reason, caplog, monkeypatch):
    task = Regression(epochs=1)
    monkeypatch.setattr(task, "model", lambda: Obstinate(kind))
    with caplog.at_level(logging.WARNING, "automl"):
        losses, _ = train(task=task)
    assert len(losses) == 1
    assert not replays
    assert reason in caplog.messages[0]


def test_a_failed_capture_falls_back(replays, caplog, monkeypatch):
    def fail(run, device):
        raise RuntimeError("CUDA error: operation not permitted\nwhen capturing")

    monkeypatch.setattr(step, "capture", fail)
    expected, _ = train("off")
    with caplog.at_level(logging.WARNING, "automl"):
        losses, state = train()
    assert losses == expected
    assert "RuntimeError: CUDA error: operation not permitted" in caplog.messages[0]
    assert "\n" not in caplog.messages[0]
    assert all(isinstance(group["lr"], float) for group in state.optimizer.param_groups)


@pytest.mark.parametrize(
    ("pace", "steps", "pays"),
    [
        # The decoder of recall and xresnet18 at 64 px on one H100: launches take nearly all of a step.
        (Pace(0.008, 0.02), 600, True),
        (Pace(0.013, 0.05), 300, True),
        # A decoder of 12 x 768: the host waits for the GPU.
        (Pace(0.050, 0.60), 10_000, False),
        (Pace(0.008, 0.02), 50, False),
    ],
)
def test_a_capture_must_pay(pace, steps, pays):
    assert pace.pays(steps) is pays


def test_regions_leave_the_model_as_it_was(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda run, dynamic: lambda x: run(x) + 1)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(2)))
    own = model[1].forward = model[1].forward
    x = torch.ones(1, 2)
    expected = model(x)
    with Regions(model):
        assert not torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)
    assert "forward" not in vars(model[0])
    assert model[1].forward is own


def test_a_model_that_cannot_be_compiled_trains_uncompiled(replays, monkeypatch, caplog):
    def refuse(*args):
        raise TypeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda run, dynamic: refuse)
    expected, _ = train("off")
    with caplog.at_level(logging.WARNING, "automl"):
        losses, _ = train("inductor")
    assert losses == pytest.approx(expected)
    assert "the model runs uncompiled, as compiling failed: TypeError: no compiler" in caplog.messages[0]


def test_graphs_need_a_scale_that_stays(replays):
    runtime = Runtime(device=CPU, compile="auto", precision="bf16")
    assert step.choose_mode(runtime) == "auto"
    assert step.choose_mode(replace(runtime, precision="fp16")) == "off"
    assert step.choose_mode(runtime, accumulate=2) == "off"


@pytest.fixture
def gpu(gpus):
    """Return a runtime on an imitated GPU."""
    return Runtime(device=find_device("cuda"))


def test_auto_measures_on_a_gpu_alone(gpu):
    assert step.choose_mode(gpu) == "auto"
    assert step.choose_mode(HERE) == "off"


@pytest.mark.parametrize(("major", "dtype"), [(7, torch.float16), (8, torch.bfloat16)])
def test_older_gpus_use_float16(gpu, gpus, major, dtype):
    gpus.major = major
    assert gpu.dtype is dtype
    assert replace(gpu, precision="fp32").dtype is torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_learns(precision):
    task = Regression(epochs=20, learning_rate=0.05)
    task.runtime = Runtime(device=CPU, precision=precision)
    state = start(task)
    assert state.scaler.is_enabled() == (precision == "fp16")
    history = list(fit(task, state))
    assert history[-1]["error"] < history[0]["error"] / 4
    assert all(parameter.dtype is torch.float32 for parameter in state.model.parameters())


@pytest.mark.slow("Compiling takes half a minute")
def test_a_compiled_model_computes_the_same():
    plain, compiled = (Regression(epochs=1, learning_rate=0.05) for _ in range(2))
    compiled.runtime = Runtime(device=CPU, precision="fp32", compile="inductor")
    plain.runtime = Runtime(device=CPU, precision="fp32")
    a, b = (next(fit(task, start(task))) for task in (plain, compiled))
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-3)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_accumulated_gradients_equal_those_of_one_large_batch(clip):
    """The batches have the same size. The remaining batches of an epoch make a step of their own."""
    models = []
    for size, accumulate in ((8, 4), (32, 1)):
        task = Regression(batch_size=size, accumulate=accumulate, clip=clip, optimizer="sgd")
        task.runtime = replace(HERE, precision="fp32")
        state = start(task)
        run_step = step.make_step(task, state.model, state.optimizer, state.scaler)
        for i in range(0, 80, size):
            rows = slice(i, i + size)
            run_step((task.x[rows], task.y[rows]), 0.1)
        run_step.finish()
        assert run_step.waiting == 0
        models.append(state.model)
    for parameter, expected in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(parameter, expected)


def test_an_epoch_ends_with_all_gradients_used():
    """A training resumed from its checkpoint then equals an uninterrupted one."""
    task = Regression(batch_size=8, accumulate=3, epochs=1)
    state = start(task)
    steps = []
    state.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    list(fit(task, state))
    assert len(steps) == 4, "ten batches make four steps"
    assert all(parameter.grad is None for parameter in state.model.parameters())
