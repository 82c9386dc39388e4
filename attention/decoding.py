"""Decoding of one token after another: the state that a causal module keeps between them, and its wrapper."""

from abc import abstractmethod
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

from attention.gated import Gated
from automl.base.errors import InputError

# Tensors with the batch in their first dimension.
State: TypeAlias = tuple[Tensor, ...]


@runtime_checkable
class Decodes(Protocol):
    """A module whose outputs at tokens can be computed one after another."""

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return the outputs `(B, N, C)` at the first N tokens `(B, N, C)`, and the state after them."""
        ...

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return the output `(B, 1, C)` at a token `(B, 1, C)` after `position` others, and the new state."""
        ...


class TokenMixer(Gated):
    """Base class of modules that can be causal, and can then decode one token after another.

    All sequences of a batch have the same length, without padding.

    Args:
        causal: Let a position attend only to itself and to earlier ones.
    """

    def __init__(self, channels: int, causal: bool) -> None:
        super().__init__(channels)
        self.causal = causal

    @abstractmethod
    def begin(self, x: Tensor) -> tuple[Tensor, State]:
        """Compute the updates `(B, N, C)` of the first N tokens, and the state after them."""

    @abstractmethod
    def advance(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Compute the update `(B, 1, C)` of the token at `position`, and the state after it."""

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return outputs, or updates if `replaces`, at the first N tokens, and the state after them."""
        self._check_causal()
        update, state = self.compute(x, self.begin)
        return self.add_gated(x, update), state

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return the output, or the update if `replaces`, at the next token, and the state after it."""
        self._check_causal()
        update, state = self.compute(x, lambda x: self.advance(x, state, position))
        return self.add_gated(x, update), state

    def _check_causal(self) -> None:
        if not self.causal:
            raise InputError(
                f"{type(self).__name__} decodes one token after another only with causal=true; got "
                f"causal=false. Run it on the whole sequence instead"
            )


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
