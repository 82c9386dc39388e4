"""Decoding of one token after another: the state that a causal module keeps between them."""

from abc import abstractmethod
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

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
