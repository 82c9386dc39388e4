"""Backbones by name: of the table, of libraries, and of the user."""

import copy
from pathlib import Path

import pytest
import timm
import torch
import torchvision

from attention import Spec
from automl.base.errors import InputError
from backbones import build, find, insert, sites
from tests.helpers import others_slow

OWN = """
import types

import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, in_channels=3, width: int = 8):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3, 2), nn.ReLU(), nn.Conv2d(width, width, 3))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

def sized(classes, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, classes))

def counted(num_classes):
    return Net(num_classes)

class Named(Net):
    def forward(self, x):
        return types.SimpleNamespace(logits=super().forward(x), loss=None)

class Mapped(Net):
    def forward(self, x):
        return {"logits": super().forward(x), "features": x}

class Late(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes)
        )

    def forward(self, x):
        return self.layers(x)

def broken(classes):
    return Net(classes) + 1
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "mine.py"


# A plain model of each library, one with another classifier, and one for images of one size.
LIBRARY = {
    "torchvision:resnet18": lambda: torchvision.models.resnet18(num_classes=5),
    "torchvision:squeezenet1_1": lambda: torchvision.models.squeezenet1_1(num_classes=5),
    "torchvision:vit_b_32": lambda: torchvision.models.vit_b_32(num_classes=5, image_size=64),
    "timm:resnet10t": lambda: timm.create_model("resnet10t", num_classes=5),
    "timm:convnext_atto": lambda: timm.create_model("convnext_atto", num_classes=5),
    "timm:vit_tiny_patch16_224": lambda: timm.create_model(
        "vit_tiny_patch16_224", num_classes=5, img_size=64
    ),
}


@pytest.mark.parametrize(
    "name", others_slow(LIBRARY, "torchvision:squeezenet1_1", "timm:resnet10t", "timm:vit_tiny_patch16_224")
)
@torch.no_grad()
def test_a_librarys_model_is_unchanged_without_attention(name: str) -> None:
    torch.manual_seed(0)
    expected = LIBRARY[name]().eval()
    model = build(name, classes=5, size=64).eval()
    model.load_state_dict(expected.state_dict())
    images = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(images), expected(images))
    names = [site.name for site in sites(model, images) if site.positions > 1]
    insert(model, dict.fromkeys([names[0], names[-1]], Spec("ssa")), images)
    assert torch.equal(model(images), expected(images)), "zero gates do not change the output"


def test_user_defined_models(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = find(f"{own}:Net")
    assert (record.dimensions, record.options) == (2, {"width": 8})
    model = build(f"{own}:Net", classes=4, in_channels=1, width=5)
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 4)
    assert model.body[0].out_channels == 5
    assert build(f"{own}:sized", classes=4, size=16)(torch.zeros(2, 3, 16, 16)).shape == (2, 4)
    Path(own).rename("by_module_name.py")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    assert find("by_module_name:Net").options == {"width": 8}


@pytest.mark.parametrize("name", ["counted", "Named", "Mapped", "Late"])
def test_other_forms_of_user_defined_models(own: str, name: str) -> None:
    model = build(f"{own}:{name}", classes=5, size=24)
    x = torch.rand(2, 3, 24, 24)
    assert model(x).shape == (2, 5)
    twin = copy.deepcopy(model)
    assert len(list(twin.parameters())) == len(list(model.parameters())) > 2
    found_sites = sites(twin, x)
    insert(twin, {found_sites[0].name: "conv1x1"}, x)
    torch.testing.assert_close(twin.eval()(x), model.eval()(x))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("xresnet19", {}, r"unknown backbone 'xresnet19'.*xresnet18.*torchvision:NAME, timm:NAME"),
        ("torchvision:resnet19", {}, "unknown model of torchvision 'resnet19'; choose one of its .*resnet18"),
        ("mine.py:Net", {"width": "5"}, "option 'width' of backbone 'mine.py:Net' must be int; got '5'"),
        ("mine.py:broken", {}, r"cannot be built: TypeError: unsupported operand.*\(mine.py, line 41\)"),
        ("torchvision:resnet18", {"depth": 3}, "cannot be built with depth=3: TypeError: .*depth"),
        ("timm:vit_tiny_patch16_224", {}, "multiple of its patches of 16 pixels; got 40. Take --size 32"),
    ],
)
def test_mistakes_are_reported(own: str, name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, classes=3, size=40, **options)
