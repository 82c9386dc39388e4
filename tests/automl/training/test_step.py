"""Steps, compiled or not, in every precision and with accumulated gradients."""

import logging
from dataclasses import replace

import pytest
import torch

from automl.base.errors import InputError
from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.training import step
from automl.training.loop import fit, start
from tests.helpers.automl_cases import CPU, HERE, Regression


@pytest.fixture
def gpu(gpus):
    """Return a runtime on an imitated GPU."""
    return Runtime(device=find_device("cuda"))


def test_auto_measures_on_a_gpu_alone(gpu):
    assert step.choose_mode(gpu) == "auto"
    assert step.choose_mode(HERE) == "off"


@pytest.mark.parametrize(("change", "accumulate"), [({"workers": 2}, 1), ({"device": CPU}, 1), ({}, 2)])
def test_a_warning_is_logged_if_graphs_cannot_work(gpu, change, accumulate, caplog):
    with caplog.at_level(logging.WARNING, "automl"):
        assert step.choose_mode(replace(gpu, compile="graphs", **change), accumulate) == "off"
    assert [record.message for record in caplog.records] == [
        "--compile graphs needs a CUDA GPU, one worker, no accumulated gradients, and another precision than "
        "float16; running step by step"
    ]


@pytest.mark.parametrize("compile_mode", ["off", "graphs", "inductor"])
def test_the_requested_mode_is_used(gpu, compile_mode):
    assert step.choose_mode(replace(gpu, compile=compile_mode)) == compile_mode


@pytest.mark.parametrize(("major", "dtype"), [(7, torch.float16), (8, torch.bfloat16)])
def test_older_gpus_use_float16(gpu, gpus, major, dtype):
    gpus.major = major
    assert gpu.dtype is dtype
    assert replace(gpu, precision="fp32").dtype is torch.float32


@pytest.mark.parametrize("wrong", [{"precision": "bf61"}, {"compile": "inducter"}])
def test_an_unknown_mode_is_rejected(wrong):
    with pytest.raises(InputError, match="Did you mean"):
        Runtime(device=CPU, **wrong)


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
