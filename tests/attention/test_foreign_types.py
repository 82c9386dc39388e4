"""Attention types of timm and of the user, behind the gate."""

from pathlib import Path

import optuna
import pytest
import torch

from attention import Spec, find_attention
from attention.attention_type import Wrapped
from attention.padding import padding
from automl.base.errors import InputError

FILE = """
from typing import Annotated, Literal

import torch
from torch import nn

from attention import Choices


class Gate(nn.Module):
    def __init__(
        self,
        channels,
        reduction: Annotated[int, Choices(2, 4)] = 4,
        kind: Literal["mean", "max"] = "mean",
    ):
        super().__init__()
        self.kind, width = kind, channels // reduction
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, channels))

    def forward(self, x):
        pooled = x.flatten(2).mean(2) if self.kind == "mean" else x.flatten(2).amax(2)
        return x * self.layers(pooled).sigmoid().view(*x.shape[:2], *[1] * (x.ndim - 2))


class Mix(nn.Module):
    layout = "B*C"

    def __init__(self, channels, size, heads: int = 2):
        super().__init__()
        self.size = size
        self.attention = nn.MultiheadAttention(channels, heads, batch_first=True)

    def forward(self, x, mask=None):
        return self.attention(x, x, x, key_padding_mask=None if mask is None else ~mask)[0]


class Drawn(Gate):
    @classmethod
    def suggest(cls, trial, prefix, channels):
        return {"reduction": trial.suggest_int(prefix + "reduction", 1, channels // 8)}


class Upside(nn.Module):
    layout = "CB*"


def function(channels):
    return channels
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FILE)
    return str(tmp_path / "mine.py")


def _features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(2, 16, 12), (2, 16, 4, 5), (2, 16, 2, 3, 4)], ids=["1d", "2d", "3d"])
@pytest.mark.parametrize("name", ["Gate", "Mix", "timm:se", "timm:cbam"])
def test_a_module_is_the_identity_and_then_itself(mine: str, name: str, shape: tuple[int, ...]) -> None:
    spec, x = Spec(name if ":" in name else f"{mine}:{name}"), _features(*shape)
    module = spec.build(16, shape[2:]).eval()
    assert isinstance(module, Wrapped)
    assert torch.equal(module(x), x)
    with torch.no_grad():
        module.gamma.fill_(1)
    y = module(x)
    assert (y.shape, y.stride()) == (x.shape, x.stride())
    tokens = x.flatten(2).transpose(1, 2)
    inner = module.module(x if name == "Gate" else tokens if name == "Mix" else _two(x))
    if name == "Mix":
        assert torch.equal(y, x + inner.transpose(1, 2).view_as(x))
    else:
        assert torch.equal(y, inner.view_as(x))
    module.layout = "B*C"
    torch.testing.assert_close(module(x.movedim(1, -1)), y.movedim(1, -1))


def _two(x: torch.Tensor) -> torch.Tensor:
    """Return features with two spatial dimensions."""
    return x.unsqueeze(-1) if x.ndim == 3 else x.flatten(2, 3) if x.ndim == 5 else x


def test_a_module_gets_the_extents_and_a_rescaling_one_is_recognised(mine: str, tmp_path: Path) -> None:
    assert Spec(f"{mine}:Mix").build(16, (4, 5)).module.size == (4, 5)  # type: ignore[union-attr]
    assert set(find_attention(f"{mine}:Mix").options) == {"heads"}
    assert Spec(f"{mine}:Gate").build(16, (4, 4)).blends
    assert not Spec(f"{mine}:Mix").build(16, (4, 4)).blends
    (tmp_path / "own.py").write_text(  # whose class decides
        FILE.replace("class Gate(nn.Module):", "class Gate(nn.Module):\n    multiplies = False")
    )
    assert not Spec(f"{tmp_path}/own.py:Gate").build(16, (4, 4)).blends


@pytest.mark.parametrize("name", ["Gate", "Mix"])
def test_padded_positions_stay_and_a_mask_is_passed_on(mine: str, name: str) -> None:
    module, x = Spec(f"{mine}:{name}").build(16, (6,)).eval(), _features(2, 16, 6)
    with torch.no_grad():
        module.gamma.fill_(1)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    with padding(mask):
        y = module(x)
    assert torch.equal(y[1, :, 4:], x[1, :, 4:])
    if name == "Mix":
        torch.testing.assert_close(y[1:, :, :4], module(x[1:, :, :4]))


def test_options_are_drawn_from_annotations_or_suggest(mine: str) -> None:
    trial = optuna.trial.FixedTrial({"a.reduction": 2, "a.kind": "max", "b.reduction": 1})
    assert find_attention(f"{mine}:Gate").suggest(trial, "a.", 16) == {"reduction": 2, "kind": "max"}
    assert find_attention(f"{mine}:Drawn").suggest(trial, "b.", 16) == {"reduction": 1}
    assert trial.distributions["b.reduction"] == optuna.distributions.IntDistribution(1, 2)


def test_a_spec_carries_the_code_of_its_class(mine: str) -> None:
    spec = Spec(f"{mine}:Gate", {"kind": "max"}).identified()
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.name == "mine.py:Gate"
    assert str(spec) == "mine.py:Gate(kind=max)"
    Path(mine).write_text(FILE + "\n# changed\n")
    with pytest.raises(InputError, match=r"the code of .*mine.py:Gate has changed; restore it"):
        spec.build(16)


def test_reading_a_spec_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('this ran')")
    spec = Spec.from_json({"type": f"{tmp_path}/evil.py:Gate", "width": 3, "code": "abc"})
    assert spec.options == {"width": 3}


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ssa", Spec("ssa")),
        ("ssa:ks=3", Spec("ssa", {"ks": 3})),
        ("timm:se:rd_ratio=0.25,bias=false", Spec("timm:se", {"rd_ratio": 0.25, "bias": False})),
        (
            "decomposed:normalisation=none,key_channels=null",
            Spec("decomposed", {"normalisation": "none", "key_channels": None}),
        ),
    ],
)
def test_text_is_parsed(text: str, spec: Spec) -> None:
    assert Spec.parse(text, "--place x") == spec


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("timm:cban", {}, r"unknown attention of timm 'cban'; choose from bat, .*Did you mean 'cbam'"),
        ("cbam", {}, r"unknown attention 'cbam'; choose from conv1x1, .*timm has one: timm:cbam"),
        ("timm:se", {"ratio": 2}, "unknown option of attention 'timm:se' 'ratio'; .*Did you mean 'rd_ratio'"),
        ("timm:ge", {}, "attention 'timm:ge' cannot be built for 16 channels: TypeError.*, line "),
        ("Gate", {"kind": "min"}, "option 'kind' of 'mine.py:Gate' must be one of mean, max; got 'min'"),
        ("Nothing", {}, "unknown Class in .*mine.py 'Nothing'; choose from .*Gate"),
        ("Upside", {}, r"layout of attention .*mine.py:Upside' must be one of BC\*, B\*C; got 'CB\*'"),
        ("function", {}, "attention 'mine.py:function' must be a torch.nn.Module; got int"),
    ],
)
def test_mistakes_have_one_message(mine: str, name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Spec(name if name in ("cbam", "sse") or ":" in name else f"{mine}:{name}", options).build(16)  # type: ignore[arg-type]
