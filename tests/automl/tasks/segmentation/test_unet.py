"""U-Nets over backbones of several kinds: all their sites are used, and new modules are the identity."""

from typing import Any

import pytest
import torch

import backbones
from automl.tasks.segmentation.model import UNet
from tests.helpers import others_slow

MODELS = [
    ("xresnet18", {"width": 0.25}, 4),
    ("torchvision:resnet18", {}, 4),
    ("torchvision:vgg11_bn", {}, 4),  # Without residual blocks.
    ("torchvision:efficientnet_b0", {}, 4),
    ("torchvision:swin_t", {}, 3),  # Channels last, and patches of 4 pixels.
    ("timm:convnext_atto", {}, 3),
    ("timm:mobilenetv3_small_050", {}, 4),
]


def build(name: str, options: dict[str, Any], size: int = 64) -> UNet:
    torch.manual_seed(0)
    return UNet(backbones.build(name, classes=7, size=size, **options), classes=5, size=size)


@pytest.mark.parametrize(("name", "options", "skips"), others_slow(MODELS, MODELS[0], MODELS[5], rows=True))
def test_logits_for_each_pixel_and_sites_on_every_skip(name, options, skips):
    model = build(name, options).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = model(x)
    assert before.shape == (2, 5, 64, 64)
    known = {site.name: site for site in backbones.sites(model, x)}
    names = [f"{kind}{i}" for kind in ("skip", "decoder") for i in range(1, skips + 1)]
    assert {"bottleneck", *names} <= known.keys()
    assert f"skip{skips + 1}" not in known
    strides = [known[f"skip{i}"].stride for i in range(1, skips + 1)]
    assert strides == [2 ** (i + 5 - skips) for i in range(skips)]
    backbones.insert(model, dict.fromkeys(["bottleneck", *names], "ssa"), x, known=list(known.values()))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), before)
    model.train()(x).square().mean().backward()
    assert all(
        gate.grad is not None and gate.grad.any()
        for name, gate in model.named_parameters()
        if "gamma" in name
    )


@pytest.mark.slow("a whole network")
def test_an_attention_at_the_end_of_a_stage_reaches_skip_and_decoder():
    """It is inserted after the hook that stores the output of the stage."""
    x = torch.randn(2, 3, 64, 64)
    model = build("torchvision:vgg11_bn", {}).eval()
    last = [*model.dimensions][-2]
    site = next(s for s in backbones.sites(model, x) if s.path == f"body.{last}")
    with torch.no_grad():
        before = model(x)
        backbones.insert(model, {site.name: "conv1x1"}, x)
        for name, parameter in model.named_parameters():
            if "gamma" in name:
                parameter.fill_(1.0)
        assert not torch.equal(model.eval()(x), before)


def test_a_unet_takes_images_of_other_sizes():
    assert build("xresnet18", {"width": 0.25})(torch.randn(2, 3, 96, 160)).shape == (2, 5, 96, 160)
