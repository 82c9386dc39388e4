"""Compare one, five and seven decomposed attentions in ResNet-50 with pyramid with conventional ones.

The sites are the published ones of the space `coco-da`. A step is forward and backward through backbone and
pyramid with one image, without heads and proposals, which attention does not change. The resolution grows
until the conventional model takes more than LIMIT. Takes about 25 minutes on two cores. Results are written
after each number of modules.
"""

from dataclasses import replace

import torch
from conventional import DEVICE, grow, open_gates
from harness import write
from torch import nn

from attention import Spec
from automl.tasks.detection.model import build_detector
from automl.tasks.detection.space import FULL, PYRAMID, published_sites
from backbones import insert

SIDES = (448, 640, 1024)
EXAMPLE = [torch.rand(3, 128, 128) for _ in range(2)]


def make_model(sites: list[str], *, conventional: bool) -> nn.Module:
    torch.manual_seed(0)
    detector = build_detector(replace(FULL, masks=False), FULL.build(classes=10), classes=10)
    placement = {
        name: Spec("decomposed", {"normalisation": "scaling", "key_channels": width, "value_channels": width})
        for name, width in ((site, 64 if site in PYRAMID else 128) for site in sites)
    }
    pyramid = insert(detector, placement, EXAMPLE).backbone
    assert isinstance(pyramid, nn.Module)
    return open_gates(pyramid, conventional=conventional)


def step(model: nn.Module, side: int) -> None:
    maps = model(torch.ones(1, 3, side, side, device=DEVICE))
    sum(level.sum() for level in maps.values()).backward()
    model.zero_grad(set_to_none=True)


def main() -> None:
    rows = []
    for sites in published_sites(FULL):
        if len(sites) in (1, 5, 7) and sites != published_sites(FULL)[1]:  # only the first single site
            ours, theirs = (make_model(sites, conventional=conventional) for conventional in (False, True))
            rows += grow(f", modules: {len(sites)}", ours, theirs, step, SIDES)
            write("pyramid", rows)


if __name__ == "__main__":
    main()
