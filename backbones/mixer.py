"""A wrapper for attention that replaces the module that mixes tokens in a transformer's block."""

from typing import Any

from torch import Tensor, nn

from attention import Gated


class Mixer(nn.Module):
    """Wrapper that calls `attention` on the first argument. Other arguments, such as a mask, are ignored.

    Args:
        attention: The inserted module.
        returns_weights: Return a tuple like `nn.MultiheadAttention`, with None as weights.
    """

    def __init__(self, attention: Gated, *, returns_weights: bool) -> None:
        super().__init__()
        self.site_mixer, self.returns_weights = attention, returns_weights

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the attention, or a tuple of it and None."""
        y = self.site_mixer(x)
        return (y, None) if self.returns_weights else y
