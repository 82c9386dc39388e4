"""Compare decomposed attention with the equal conventional one as the resolution grows.

Without a softmax the products can be taken in either order: `q (k^T v) / N`, or `(q k^T) v / N` with the N x
N matrix of a non-local network (arXiv 1812.01243, section 3; arXiv 1711.07971).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from harness import Row, compare, peak_memory, seconds, show
from torch import Tensor, nn

from attention.decomposed import DecomposedAttention
from automl.config.device import find_device

DEVICE = find_device()
GRAIN = 32  # pixels
LIMIT = 4 * 2**10  # MiB
ROUNDS = 3
PEER = "conventional attention"


class Conventional(nn.Module):
    """Conventional attention: the function of a decomposed one, with the matrix of all pairs of positions."""

    def __init__(self, module: DecomposedAttention) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        module, tokens = self.module, x.flatten(2).mT
        q, k, v = module.query(tokens), module.key(tokens), module.value(tokens)
        weights = q @ k.mT / x.shape[2:].numel()  # (B, N, N)
        update = module.reprojection(weights @ v)
        return x + module.gamma * update.mT.unflatten(2, x.shape[2:])


def open_gates(model: nn.Module, *, conventional: bool) -> nn.Module:
    """Open the gates of decomposed attentions in the model, and make them conventional if asked."""
    for parent in list(model.modules()):
        module: Any = getattr(parent, "site_attention", None)
        if isinstance(module, DecomposedAttention):
            nn.init.constant_(module.gamma, 0.1)
            if conventional:
                parent.site_attention = Conventional(module)
    return model.to(DEVICE).train()


def grow(
    case: str,
    ours: nn.Module,
    theirs: nn.Module,
    step: Callable[[nn.Module, int], None],
    sides: Sequence[int],
) -> list[Row]:
    """Measure memory and time of `step(model, side)` until the conventional model exceeds LIMIT.

    The last row has the smallest side, in steps of GRAIN pixels, at which it does.
    """

    def memory(model: nn.Module, side: int) -> float:
        return peak_memory(lambda: step(model, side), DEVICE)

    rows, before = [], GRAIN
    for side in sides:
        rows.append(
            compare(
                f"memory{case}, {side} px",
                PEER,
                partial(memory, ours, side),
                partial(memory, theirs, side),
                unit="MiB",
                rounds=ROUNDS,
                higher_is_better=False,
            )
        )
        rows.append(
            compare(
                f"time{case}, {side} px",
                PEER,
                partial(seconds, partial(step, ours, side), DEVICE),
                partial(seconds, partial(step, theirs, side), DEVICE),
                unit="s",
                rounds=ROUNDS,
                higher_is_better=False,
            )
        )
        if rows[-2].theirs > LIMIT:
            break
        before = side
    else:
        return rows
    low, high = before, side
    while high - low > GRAIN:
        middle = (low + high) // 2 // GRAIN * GRAIN
        low, high = (low, middle) if memory(theirs, middle) > LIMIT else (middle, high)
    least, most = memory(ours, high), memory(theirs, high)
    rows.append(
        Row(
            case=f"over {LIMIT // 2**10} GiB{case} from {high} px",
            peer=PEER,
            ours=least,
            theirs=most,
            unit="MiB",
            spread=(most / least, most / least),
            ratio=most / least,
        )
    )
    show(rows[-1])
    return rows
