"""Which way a step is run, and that float16's scaler takes part."""

import logging
from dataclasses import replace

import pytest
import torch
from automl_cases import CPU, HERE, Regression

from attention import InputError
from automl import step
from automl.loop import fit, start
from automl.runtime import Runtime

GPU = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as far as choosing goes."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    return Runtime(device=GPU)


def test_a_gpu_replays_a_graph_where_it_pays(gpu):
    assert step.choose(gpu, step.PAYS) == "graphs"
    assert step.choose(gpu, step.PAYS - 1) == "off"


def test_a_cpu_runs_step_by_step():
    assert step.choose(HERE, 10**6) == "off"


@pytest.mark.parametrize("change", [{"precision": "fp16"}, {"workers": 2}, {"device": CPU}])
def test_where_graphs_cannot_work_it_is_said(gpu, change, caplog):
    with caplog.at_level(logging.WARNING, "automl"):
        assert step.choose(replace(gpu, compile="graphs", **change), 1000) == "off"
    assert "CUDA graphs need a GPU" in caplog.text
    caplog.clear()
    assert step.choose(replace(gpu, **change), 1000) == "off"
    assert not caplog.text, "auto has nothing to explain"


@pytest.mark.parametrize("way", ["off", "inductor"])
def test_what_is_asked_for_is_done(gpu, way):
    assert step.choose(replace(gpu, compile=way), 1000) == way


def test_older_gpus_take_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    assert Runtime(device=GPU).dtype is torch.float16
    assert Runtime(device=GPU, precision="fp32").dtype is torch.float32


@pytest.mark.parametrize("wrong", [{"precision": "bf61"}, {"compile": "inducter"}])
def test_an_unknown_way_is_an_error(wrong):
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


def test_inductor_computes_the_same():
    plain, compiled = (Regression(epochs=1, learning_rate=0.05) for _ in range(2))
    compiled.runtime = Runtime(device=CPU, precision="fp32", compile="inductor")
    plain.runtime = Runtime(device=CPU, precision="fp32")
    a, b = (next(fit(task, start(task))) for task in (plain, compiled))
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-3)
