"""Which way a step is run, that float16's scaler takes part, and that a wrong capture is not trusted."""

import json
import logging
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from automl_cases import CPU, HERE, Regression
from torch import nn

from attention import InputError
from automl.config.runtime import Runtime
from automl.training import graphs, step
from automl.training.loop import fit, start

GPU = torch.device("cuda")


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as far as choosing goes."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fast GPU")
    return Runtime(device=GPU)


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The table of GPUs on which graphs were measured, empty."""
    monkeypatch.setattr(graphs, "MEASURED", tmp_path / "measured.json")
    graphs.MEASURED.write_text("{}")
    return graphs.MEASURED


def test_a_gpu_replays_a_graph_where_it_was_measured_to_pay(gpu, measured):
    assert step.choose(gpu, 10**6) == "off"
    graphs.record("Fast GPU", 1.25, True)
    graphs.record("Other GPU", 0.5, False)
    assert step.choose(gpu, step.PAYS) == "graphs"
    assert step.choose(gpu, step.PAYS - 1) == "off"


@pytest.mark.parametrize(("ratio", "agreed"), [(0.97, True), (1.5, False)])
def test_a_gpu_where_graphs_are_slower_or_wrong_runs_step_by_step(gpu, measured, ratio, agreed):
    graphs.record("Fast GPU", ratio, agreed)
    assert step.choose(gpu, 10**6) == "off"
    assert step.choose(replace(gpu, compile="graphs"), 1) == "graphs", "who asks for it gets it"


def test_the_table_of_measured_gpus_is_one():
    for metadata in json.loads(graphs.MEASURED.read_text()).values():
        assert metadata.keys() == {"date", "torch", "ratio", "agreed"}


def test_a_cpu_runs_step_by_step():
    assert step.choose(HERE, 10**6) == "off"


@pytest.mark.parametrize("change", [{"precision": "fp16"}, {"workers": 2}, {"device": CPU}])
def test_where_graphs_cannot_work_it_is_said(gpu, measured, change, caplog):
    graphs.record("Fast GPU", 1.25, True)
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


@pytest.mark.long  # compiling takes half a minute
def test_inductor_computes_the_same():
    plain, compiled = (Regression(epochs=1, learning_rate=0.05) for _ in range(2))
    compiled.runtime = Runtime(device=CPU, precision="fp32", compile="inductor")
    plain.runtime = Runtime(device=CPU, precision="fp32")
    a, b = (next(fit(task, start(task))) for task in (plain, compiled))
    assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-3)


class Noisy(Regression):
    """The line again, with buffers, dropout and a running mean that forward puts in place of the last one."""

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return x - self.mean

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(
            self.Centred(), nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
        )


class Replay:
    """Runs the step in place of replaying it. What a wrong capture does otherwise is in the subclasses."""

    replays = 0

    def aside(self):
        return nullcontext()

    def capture(self, run, batch):
        self.run, self.first = run, tuple(tensor.clone() for tensor in batch)

        def replay(batch):
            self.replays += 1
            return self.replay(batch)

        return replay

    def replay(self, batch):
        return self.run(batch)


class RoundsOtherwise(Replay):
    def replay(self, batch):
        return self.run(tuple(tensor * (1 + 1e-6) for tensor in batch))


class StaleInput(Replay):
    def replay(self, batch):
        return self.run(self.first)


class StaleRate(Replay):
    def replay(self, batch):
        for group in OPEN[0].param_groups:
            group["lr"].fill_(1e-4)
        return self.run(batch)


class StaleLoss(Replay):
    def replay(self, batch):
        self.loss = self.run(batch) if self.replays == 1 else self.loss
        return self.loss


class StaleState(Replay):
    """The optimiser's moments are those of the capture, each time."""

    def replay(self, batch):
        before = [tensor.clone() for tensor in graphs._states(OPEN[0])]
        loss = self.run(batch)
        for tensor, old in zip(graphs._states(OPEN[0]), before, strict=True):
            tensor.copy_(old)
        return loss


class StaleBuffer(Replay):
    def replay(self, batch):
        before = OPEN[1][0].mean.clone()
        loss = self.run(batch)
        OPEN[1][0].mean.copy_(before)
        return loss


class CountsTwice(Replay):
    def replay(self, batch):
        loss = self.run(batch)
        OPEN[1][2].num_batches_tracked += 1
        return loss


class StaleWeight(Replay):
    """One small weight is left out, which no loss tells: a bias before a norm."""

    def replay(self, batch):
        before = OPEN[1][1].bias.detach().clone()
        loss = self.run(batch)
        OPEN[1][1].bias.data.copy_(before)
        return loss


class NoStep(Replay):
    def replay(self, batch):
        with torch.no_grad():
            return OPEN[2].learn(OPEN[1], batch)


class OtherNumbers(Replay):
    """Dropout draws from elsewhere."""

    def replay(self, batch):
        torch.manual_seed(self.replays)
        return self.run(batch)


class NotAtAll(Replay):
    def capture(self, run, batch):
        run(batch)
        raise RuntimeError("operation not permitted when stream is capturing")


OPEN = []  # optimiser, model and task of the training that is under test


def trained(capture, steps=20, **training):
    """The losses, the state and the step of a training, captured or not."""
    task = Noisy(learning_rate=0.05, **training)
    state = start(task)
    state.model.train()
    OPEN[:] = state.optimizer, state.model, task
    parts = task, state.model, state.optimizer, state.scaler
    if capture is None:  # with the rate as a tensor, which rounds it
        run = step.Step(*parts)
        for group in state.optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
    else:
        run = step.GraphedStep(*parts, graphs=capture)
    batches = [batch for epoch in range(2) for batch in task.batches(epoch)]
    losses = [run(batch, 0.05 - 0.002 * i)[0].item() for i, batch in enumerate(batches[:steps])]
    return losses, state, run


def same_state(one, other):
    pairs = zip(
        [*one.model.state_dict().values(), *graphs._states(one.optimizer)],
        [*other.model.state_dict().values(), *graphs._states(other.optimizer)],
        strict=True,
    )
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_capture_that_is_right_is_replayed_and_changes_nothing(optimizer, caplog):
    capture = Replay()
    expected, plain, _ = trained(None, optimizer=optimizer)
    losses, state, run = trained(capture, optimizer=optimizer)
    assert run.replay is not None
    assert capture.replays == step.CHECKED + 20 - step.WARM_UP
    assert losses == expected
    assert same_state(state, plain)
    assert not caplog.text


def test_rounding_is_no_reason_to_distrust():
    """Of adamw: with sgd the bias before a norm moves by less than it can hold, or not at all."""
    assert trained(RoundsOtherwise(), optimizer="adamw")[2].replay is not None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (StaleInput, ""),
        (StaleRate, ""),
        (StaleLoss, "the loss of step 2 is"),
        (StaleState, ""),
        (StaleBuffer, ""),
        (CountsTwice, "2.num_batches_tracked counts otherwise"),
        (StaleWeight, "1.bias changes in one of the two alone"),
        (NoStep, ""),
        (OtherNumbers, ""),
        (NotAtAll, "operation not permitted when stream is capturing"),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_capture_that_is_wrong_is_not_trusted_and_changes_nothing(wrong, why, optimizer, caplog):
    expected, plain, _ = trained(None, optimizer=optimizer)
    with caplog.at_level(logging.WARNING, "automl"):
        losses, state, run = trained(wrong(), optimizer=optimizer)
    assert "the captured step is not trusted, so training runs step by step: " in caplog.text
    assert why in caplog.text
    assert run.replay is None
    assert losses == expected
    assert same_state(state, plain)


@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_gradients_of_several_batches_make_the_step_of_one_large_batch(clip):
    """Of equally large ones; what is left at the end of an epoch makes a step of its own."""
    models = []
    for size, accumulate in ((8, 4), (32, 1)):
        task = Regression(batch_size=size, accumulate=accumulate, clip=clip, optimizer="sgd")
        task.runtime = replace(HERE, precision="fp32")
        state = start(task)
        take = step.make_step(task, state.model, state.optimizer, state.scaler)
        for i in range(0, 80, size):
            rows = slice(i, i + size)
            take((task.x[rows], task.y[rows]), 0.1)
        take.finish()
        assert take.waiting == 0
        models.append(state.model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


def test_an_epoch_ends_with_all_gradients_used():
    """So that a training goes on from its checkpoint as if it had not been interrupted."""
    task = Regression(batch_size=8, accumulate=3, epochs=1)
    state = start(task)
    steps = []
    state.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    list(fit(task, state))
    assert len(steps) == 4, "of ten batches"
    assert all(parameter.grad is None for parameter in state.model.parameters())


def test_graphs_do_not_go_with_gradients_of_several_batches(gpu, measured):
    graphs.record("Fast GPU", 1.25, True)
    assert step.choose(gpu, 10**6, accumulate=2) == "off"
