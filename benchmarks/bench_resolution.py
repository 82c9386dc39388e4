"""Compare a training step of a ResNet-50 with seven decomposed attentions and with seven conventional ones.

Three modules are after res3 and four after res4. The resolution grows until the conventional model takes more
than LIMIT.
"""

import torch
from conventional import DEVICE, grow, open_gates
from harness import write
from torch import nn

from attention import Spec
from backbones import build, insert

SITES = [f"stage2.block{i}" for i in (2, 3, 4)] + [f"stage3.block{i}" for i in (3, 4, 5, 6)]
SIDES = (224, 320, 448, 640, 896, 1280, 1792)


def make_model(*, conventional: bool) -> nn.Module:
    torch.manual_seed(0)
    resnet = build("torchvision:resnet50", classes=10)
    placement = {
        name: Spec("decomposed", {"normalisation": "scaling", "key_channels": width, "value_channels": width})
        for name, width in ((site, 64 if site.startswith("stage2") else 128) for site in SITES)
    }
    return open_gates(insert(resnet, placement), conventional=conventional)


def step(model: nn.Module, side: int) -> None:
    images = torch.zeros(1, 3, side, side, device=DEVICE)
    model(torch.cat([images, images + 1])).sum().backward()
    model.zero_grad(set_to_none=True)


def main() -> None:
    ours, theirs = (make_model(conventional=conventional) for conventional in (False, True))
    images = torch.randn(
        2, 3, 64, 64, device=DEVICE
    )  # batch norms keep the products of three tensors in range
    torch.testing.assert_close(ours(images), theirs(images), rtol=1e-3, atol=1e-3)
    write("resolution", grow("", ours, theirs, step, SIDES))


if __name__ == "__main__":
    main()
