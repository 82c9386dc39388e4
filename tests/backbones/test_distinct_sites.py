"""Each feature map is one site, and logits are none."""

from collections.abc import Callable

import pytest
import segmentation_models_pytorch as smp
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from backbones import insert, sites
from backbones.torch_internals import tree_leaves
from tests.helpers import others_slow
from tests.helpers.segmenters import CLASSES, PlainUNet, Yolo
from tests.helpers.sites_models import randomise_norms

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
HEADS = [f"detect.{head}.{i}.{j}" for i in (0, 1) for head in ("box", "cls") for j in (0, 1)]
RESNET = ["stem", *(f"stage{i}.block{j}{s}" for i in (1, 2, 3, 4) for j in (1, 2) for s in (".branch", ""))]


def _smp(name: str) -> nn.Module:
    return getattr(smp, name)("resnet18", encoder_weights=None, classes=CLASSES)


MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "plain U-Net": (
        PlainUNet,
        [
            *("inc.net.2", "inc"),
            *(f"down{i}{suffix}" for i in (1, 2) for suffix in (".0", ".1.net.2", "")),
            *(f"up{i}{suffix}" for i in (1, 2) for suffix in (".up", ".conv.net.2", "")),
        ],
    ),
    "YOLO": (
        lambda: Yolo(residual=True),
        [
            *("stem", "stage1.block1.branch", "stage1.block1"),
            *("p4.0", "stage2.block1.branch", "stage2.block1", "neck", *HEADS),
        ],
    ),
    "YOLO without residual blocks": (
        lambda: Yolo(residual=False),
        ["stem", "p3.0", "p3", "p4.0", "p4", "up", "neck", *HEADS],
    ),
    "smp.Unet": (lambda: _smp("Unet"), [*RESNET, *(f"decoder.blocks.{i}" for i in range(4)), "decoder"]),
    "smp.FPN": (
        lambda: _smp("FPN"),
        [
            *(*RESNET, *(f"stage{i}.block1" for i in (5, 6, 7))),
            *(f"decoder.seg_blocks.{path}" for path in ("0.block.0", "0.block.1", "0", "1.block.0")),
            *(f"decoder.seg_blocks.{i}" for i in (1, 2, 3)),
        ],
    ),
}


@pytest.mark.parametrize("name", others_slow(MODELS, "plain U-Net", "YOLO", "YOLO without residual blocks"))
@torch.no_grad()
def test_models_of_logits(name: str) -> None:
    """New modules change no output, and each one with an open gate does."""
    make, expected = MODELS[name]
    model = randomise_norms(make())
    before, known = model(IMAGES), sites(model, IMAGES)
    assert [site.name for site in known] == expected
    assert CLASSES not in {site.channels for site in known}
    insert(model, dict.fromkeys(expected, "conv1x1"), IMAGES)
    assert all(map(torch.equal, tree_leaves(model(IMAGES)), tree_leaves(before)))
    for site in known:
        module = model.get_submodule(site.path).site_attention
        module.gamma.fill_(1)
        assert not all(map(torch.equal, tree_leaves(model(IMAGES)), tree_leaves(before))), site.name
        module.gamma.fill_(0)
    assert sites(model, IMAGES) == known


def _names(model: nn.Module) -> list[str]:
    return [site.name for site in sites(model, IMAGES)]


@pytest.mark.parametrize(
    ("make", "last"),
    [
        (lambda: nn.Sequential(*[*torchvision.models.resnet18().children()][:-2]), "stage4.block2"),
        (lambda: torchvision.models.mobilenet_v2().features, "18"),
        (lambda: resnet_fpn_backbone(backbone_name="resnet18", weights=None), "fpn.layer_blocks.0"),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)), "1"),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), "2"),
    ],
    ids=["resnet", "mobilenet", "fpn", "norm", "as many channels"],
)
def test_the_output_of_a_feature_extractor_is_a_site(make: Callable[[], nn.Module], last: str) -> None:
    assert _names(make())[-1] == last


class Composed(nn.Module):
    """Layers with a function between them or after them."""

    def __init__(self, function: Callable[["Composed", Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.conv, self.other = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.act, self.inplace = nn.BatchNorm2d(8), nn.SiLU(), nn.ReLU(inplace=True)
        self.end = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.conv(x)).sum()


def _rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6)


def _normalise_last(x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2)


CHAINS: dict[str, tuple[Callable[[Composed, Tensor], Tensor], list[str]]] = {
    "in a row": (lambda m, x: m.act(m.norm(x)), ["act"]),
    "in place": (lambda m, x: m.inplace(m.norm(x)), ["inplace"]),
    "composed": (lambda m, x: m.end(x * x.sigmoid()), ["end"]),
    "composed norm": (lambda m, x: m.end(_rms(x)), ["end"]),
    "channels last": (lambda m, x: m.end(_normalise_last(x)), ["end"]),
    "used twice": (lambda m, x: m.other(m.act(x)) * x, ["conv", "act", "other"]),
    "concatenated": (lambda m, x: torch.cat([x, m.act(x)], 1), ["conv", "act"]),
    "two layers": (lambda m, x: m.act(m.other(x)), ["conv", "act"]),
    "pooled": (lambda m, x: m.end(nn.functional.max_pool2d(x, 3, 1, 1)), ["conv", "end"]),
    "used after a change in place": (lambda m, x: m.inplace(x) * x, ["inplace"]),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_norms_and_activations_belong_to_the_layer_before_them(kind: str) -> None:
    function, expected = CHAINS[kind]
    assert _names(Composed(function)) == expected
