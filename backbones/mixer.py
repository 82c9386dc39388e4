"""A wrapper for attention that replaces the module that mixes tokens in a transformer's block."""

from typing import Any

from torch import Tensor, nn

from attention import Gated
from attention.decoding import Decodes, State


class Mixer(nn.Module):
    """Wrapper that calls `attention` on the first argument, as `hidden_states=x` or positional.

    Other arguments, such as a mask, are ignored.

    Args:
        attention: The inserted module.
        tuple_length: Length of the tuple to return, such as 2 for `nn.MultiheadAttention`, which also returns
            weights. The other elements are None. With 0, the output is returned alone.
    """

    def __init__(self, attention: Gated, *, tuple_length: int = 0) -> None:
        super().__init__()
        self.site_mixer, self.tuple_length = attention, tuple_length

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the attention, or a tuple that begins with it."""
        y = self.site_mixer(next(iter((*args, *kwargs.values()))))
        return (y, *[None] * (self.tuple_length - 1)) if self.tuple_length else y

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return what `attention.decoding.Decodes.prefill` of the attention returns."""
        return self._decoding.prefill(x)

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return what `attention.decoding.Decodes.step` of the attention returns."""
        return self._decoding.step(x, state, position)

    @property
    def _decoding(self) -> Decodes:
        assert isinstance(self.site_mixer, Decodes), "the decoder has checked it"
        return self.site_mixer
