"""What stands in a transformer's block in place of the module that mixes its tokens."""

from typing import Any

from torch import Tensor, nn

from attention import Gated


class Mixer(nn.Module):
    """Calls `attention` on the first argument; what else is given, such as a mask, is not used.

    returns_weights: it returns what `nn.MultiheadAttention` does, without weights.
    """

    def __init__(self, attention: Gated, *, returns_weights: bool) -> None:
        super().__init__()
        self.site_mixer, self.returns_weights = attention, returns_weights

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        y = self.site_mixer(x)
        return (y, None) if self.returns_weights else y
