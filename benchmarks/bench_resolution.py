"""Seven decomposed attentions in a ResNet-50 against seven conventional ones: a training step.

Both have the same weights and compute the same function, since without a softmax the products can be taken in
either order: `q (k^T v) / N`, or `(q k^T) v / N` with its N x N matrix as a non-local network keeps it
(arXiv 1812.01243, section 3; arXiv 1711.07971). Three modules stand after res3 and four after res4. The
resolution grows until the conventional model takes more than LIMIT, and the row `over` has the side of the
images, to 32 pixels, at which that begins.
"""

from functools import cache

import torch
from harness import Row, compare, find_device, peak_memory, seconds, show, write
from torch import Tensor, nn

from attention import Spec
from attention.decomposed import DecomposedAttention
from backbones import build, insert

DEVICE = find_device()
PLACES = [f"stage2.block{i}" for i in (2, 3, 4)] + [f"stage3.block{i}" for i in (3, 4, 5, 6)]
SIDES = (224, 320, 448, 640, 896, 1280, 1792)
GRAIN = 32
LIMIT = 4 * 2**10  # MiB
ROUNDS = 3


class Conventional(nn.Module):
    """A decomposed attention's function with the matrix of all pairs of positions."""

    def __init__(self, module: DecomposedAttention) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        module, tokens = self.module, x.flatten(2).mT
        q, k, v = module.query(tokens), module.key(tokens), module.value(tokens)
        weights = q @ k.mT / x.shape[2:].numel()  # (B, N, N)
        update = module.reprojection(weights @ v)
        return x + module.gamma * update.mT.unflatten(2, x.shape[2:])


@cache
def models() -> tuple[nn.Module, nn.Module]:
    """The decomposed model and the conventional one, with open gates."""
    made = []
    for conventional in (False, True):
        torch.manual_seed(0)
        model = build("torchvision:resnet50", classes=10)
        spec = {
            name: Spec(
                "decomposed", {"normalisation": "scaling", "key_channels": width, "value_channels": width}
            )
            for name, width in ((place, 64 if place.startswith("stage2") else 128) for place in PLACES)
        }
        insert(model, spec)
        for parent in [
            m for m in model.modules() if isinstance(getattr(m, "site_attention", None), DecomposedAttention)
        ]:
            nn.init.constant_(parent.site_attention.gamma, 0.1)
            if conventional:
                parent.site_attention = Conventional(parent.site_attention)
        made.append(model.to(DEVICE).train())
    return made[0], made[1]


def step(model: nn.Module, side: int) -> None:
    images = torch.zeros(1, 3, side, side, device=DEVICE)
    model(torch.cat([images, images + 1])).sum().backward()
    model.zero_grad(set_to_none=True)


def memory(model: nn.Module, side: int) -> float:
    return peak_memory(lambda: step(model, side), DEVICE)


def over(low: int, high: int) -> int:
    """The least side, in steps of GRAIN, at which the conventional model takes more than LIMIT."""
    while high - low > GRAIN:
        middle = (low + high) // 2 // GRAIN * GRAIN
        low, high = (low, middle) if memory(models()[1], middle) > LIMIT else (middle, high)
    return high


def check() -> None:
    images = torch.randn(2, 3, 64, 64, device=DEVICE)
    ours, theirs = (model(images) for model in models())  # whose norms keep the products of three in range
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def main() -> None:
    check()
    rows, before = [], GRAIN
    ours, theirs = models()
    for side in SIDES:
        for model in (ours, theirs):
            step(model, side)  # warms up
        rows.append(
            compare(
                f"memory, {side} px",
                "conventional attention",
                lambda side=side: memory(ours, side),
                lambda side=side: memory(theirs, side),
                unit="MiB",
                rounds=ROUNDS,
                higher_is_better=False,
            )
        )
        rows.append(
            compare(
                f"time, {side} px",
                "conventional attention",
                lambda side=side: seconds(lambda: step(ours, side), DEVICE),
                lambda side=side: seconds(lambda: step(theirs, side), DEVICE),
                unit="s",
                rounds=ROUNDS,
                higher_is_better=False,
            )
        )
        if rows[-2].theirs > LIMIT:
            break
        before = side
    found = over(before, side)
    last = memory(ours, found)
    rows.append(
        Row(
            case=f"over {LIMIT // 2**10} GiB from {found} px",
            peer="conventional attention",
            ours=last,
            theirs=(most := memory(theirs, found)),
            unit="MiB",
            spread=(most / last, most / last),
            ratio=most / last,
        )
    )
    show(rows[-1])
    write("resolution", rows)


if __name__ == "__main__":
    main()
