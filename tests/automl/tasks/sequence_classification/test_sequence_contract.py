"""Properties of every sequence model, for every record of the table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attention import ATTENTIONS, Spec
from attention.padding import padding
from automl.task import Task, open_task
from automl.tasks.sequence_classification import SequenceData
from backbones import BACKBONES, build, insert, sites
from backbones.padded import MaskedBatchNorm1d
from search.config import Model, TrialConfig
from search.config.sections import ClassificationTraining
from tests.helpers.automl_cases import HERE
from tests.helpers.backbone_contract import (
    CHANNELS,
    CLASSES,
    LENGTH,
    SMALL,
    every_name,
    lengths,
    new,
    sequences,
)
from tests.helpers.task_contract import TaskTestCase


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@every_name
def test_sequences_of_any_length_are_accepted(name: str, training: bool) -> None:
    model = new(name).train(training)
    for length in (1, 2, LENGTH):
        assert model(sequences(length=length)).shape == (4, CLASSES)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@every_name
def test_every_parameter_has_a_gradient(name: str, masked: bool) -> None:
    model = new(name).double()
    logits = model(sequences(dtype=torch.float64), lengths(16, 9, 5, 1) if masked else None)
    (logits * logits.detach().cos()).sum().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert 1e-9 < value.grad.norm() < float("inf"), parameter


@pytest.mark.parametrize("times", [1.0, 1.5, 2.0, 3.0])
@every_name
def test_padding_changes_nothing(name: str, times: float) -> None:
    """Neither its length nor its content matters, even NaN."""
    model, x = new(name).eval(), sequences(length=11)
    longest = int(11 * times)
    padded = torch.full((4, CHANNELS, longest), float("nan"))
    padded[:, :, :11] = x
    logits = model(padded, lengths(11, 11, 11, 11, longest=longest))
    torch.testing.assert_close(logits, model(x), rtol=1e-5, atol=1e-5)


@every_name
def test_sequences_of_different_lengths_do_not_mix(name: str) -> None:
    model, x, real = new(name).eval(), sequences(), (16, 9, 5, 1)
    single = torch.cat([model(x[i : i + 1, :, :n]) for i, n in enumerate(real)])
    torch.testing.assert_close(model(x, lengths(*real)), single, rtol=1e-5, atol=1e-5)


@every_name
def test_padding_does_not_affect_training(name: str) -> None:
    """It affects neither the gradients nor the statistics of the norms."""
    x, real = sequences(dtype=torch.float64), (12, 9, 5, 1)
    outcomes = []
    for end in (12, 16):
        model = new(name).double()
        cut = x[:, :, :end].clone()
        cut.masked_fill_(~lengths(*real, longest=end).unsqueeze(1), float(end))
        model(cut, lengths(*real, longest=end)).square().sum().backward()
        outcomes.append([*(p.grad for p in model.parameters()), *model.buffers()])
    for a, b in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, b)


@every_name
def test_works_under_autocast(name: str) -> None:
    if name == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no LSTM in bfloat16 on this processor")
    model, x = new(name), sequences()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    logits.float().sum().backward()
    torch.testing.assert_close(new(name)(x), logits.float(), rtol=0.1, atol=0.2)


def test_every_record_has_its_dimensions() -> None:
    assert {record.dimensions for record in BACKBONES.values()} == {1, 2}
    assert set(SMALL) == {name for name, record in BACKBONES.items() if record.dimensions == 1}
    assert all(isinstance(new(name), nn.Module) for name in SMALL)


class TestSequences(TaskTestCase):
    """Sequences of one length."""

    shortest = 12

    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        arrays = {}
        for part, count in (("train", 60), ("test", 20)):
            y = np.arange(count) % 3
            x = draw.normal(size=(count, 2, 12)).astype(np.float32) + y[:, None, None]
            lengths = draw.integers(self.shortest, 13, count)
            arrays |= {f"x_{part}": x, f"y_{part}": y, f"lengths_{part}": lengths}
        self.path = tmp_path / "made.npz"
        np.savez(self.path, **arrays)

    def make(self, runtime: Any = HERE) -> Task:
        config = TrialConfig(
            task="sequence-classification",
            data=SequenceData(path=str(self.path)),
            model=Model(backbone="lstm", options={"hidden": 8, "layers": 1}),
            training=ClassificationTraining(epochs=2, batch_size=8),
        )
        return open_task(config, runtime)


class TestPaddedSequences(TestSequences):
    shortest = 5


BLOCKS = {"resnet1d": (2, 2, 2), "bilstm": (3,), "larnn": (3,)}


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_has_its_two_sites(name: str) -> None:
    expected = ["stem"]
    for i, blocks in enumerate(BLOCKS[name], start=1):
        for j in range(1, blocks + 1):
            expected += [f"stage{i}.block{j}.branch", f"stage{i}.block{j}"]
    known = sites(build(name, classes=3), torch.empty(1, 3, 32))
    assert [site.name for site in known] == expected
    assert [site.stride for site in known if site.name != "stem"] == [
        2**i if name == "resnet1d" else 1 for i, blocks in enumerate(BLOCKS[name]) for _ in range(2 * blocks)
    ]


@every_name
def test_attention_at_every_site_learns(name: str) -> None:
    model, x = new(name).eval(), sequences()
    before, known = model(x), sites(model, x)
    types = list(ATTENTIONS)
    insert(model, {site.name: Spec(types[i % len(types)]) for i, site in enumerate(known)}, x)
    torch.testing.assert_close(model(x), before)
    model.train()(x).square().sum().backward()
    gates = [p for path, p in model.named_parameters() if path.endswith("gamma")]
    assert len(gates) == len(known)
    assert all(gate.grad is not None and gate.grad.abs() > 0 for gate in gates)


def norm(channels: int = 4) -> MaskedBatchNorm1d:
    module = MaskedBatchNorm1d(channels).double()
    nn.init.uniform_(module.weight, 0.5, 1.5)
    nn.init.normal_(module.bias)
    return module


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_norm_uses_only_the_real_positions(training: bool) -> None:
    """The result equals that of one long sequence of the real positions."""
    torch.manual_seed(0)
    masked = norm().train(training)
    plain = nn.BatchNorm1d(4).double().train(training)
    plain.load_state_dict(masked.state_dict())
    mask, x = lengths(6, 3, 1, longest=6), torch.randn(3, 4, 6, dtype=torch.float64)
    x.masked_fill_(~mask.unsqueeze(1), float("nan"))
    with padding(mask):
        y = masked(x)
    real = x.transpose(1, 2)[mask].t().unsqueeze(0)  # (1, C, all real positions)
    torch.testing.assert_close(y.transpose(1, 2)[mask].t().unsqueeze(0), plain(real))
    assert y.transpose(1, 2)[~mask].eq(0).all()
    for a, b in zip(masked.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)
