"""Sites of sequence models, attention at them, and the norm for padded sequences."""

import pytest
import torch
from torch import nn

from attention import ATTENTIONS, Spec
from attention.padding import padding
from backbones import build, insert, sites
from backbones.padded import MaskedBatchNorm1d
from tests.helpers.backbone_contract import every_name, lengths, new, sequences

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


def test_stacked_layers_are_sites() -> None:
    known = sites(build("lstm", classes=3, hidden=8), torch.empty(1, 3, 32))
    assert [(site.name, site.channels, site.resolution) for site in known] == [
        ("layers.0", 8, (32,)),
        ("layers.1", 8, (32,)),
    ]


@every_name
def test_padding_changes_no_site(name: str) -> None:
    """The model sets padded positions to zero between its modules."""
    x = sequences()
    mask = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool)
    assert sites(new(name), (x, mask)) == sites(new(name), x)


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
