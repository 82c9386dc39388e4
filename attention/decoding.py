"""Decoding of one token after another: the state that a causal module keeps between them."""

from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

# Tensors with the batch in their first dimension.
State: TypeAlias = tuple[Tensor, ...]


@runtime_checkable
class Decodes(Protocol):
    """A module whose outputs at tokens can be computed one after another."""

    def prefill(self, x: Tensor) -> tuple[Tensor, State]:
        """Return the outputs `(B, N, C)` at the first N tokens, and the state after them.

        Args:
            x: Features `(B, N, C)`.
        """
        ...

    def step(self, x: Tensor, state: State, position: Tensor) -> tuple[Tensor, State]:
        """Return the output `(B, 1, C)` at the next token, and the state after it.

        Args:
            x: Features `(B, 1, C)`.
            state: State after the earlier tokens.
            position: Number of earlier tokens, an int64 scalar.
        """
        ...
