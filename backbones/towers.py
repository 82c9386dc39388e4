"""Two encoders, one of queries and one of what they find, whose vectors are compared."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Texts in parts: tokens, int `(B, T)`, and mask, bool `(B, T)`, each part with a B and T of its own.
Texts = Sequence[tuple[Tensor, Tensor]]


class TwoTowers(nn.Module):
    """`query` and `code`: modules from tokens `(B, T)` and mask `(B, T)` to `(B, D)`; they may be the same.

    Source: B. Mitra, N. Craswell, An Introduction to Neural Information Retrieval (2018), section 6.2.
    """

    def __init__(self, query: nn.Module, code: nn.Module) -> None:
        super().__init__()
        self.query, self.code = query, code

    def forward(self, query: Texts = (), code: Texts = ()) -> tuple[Tensor | None, Tensor | None]:
        """The vectors of the queries and of the code, `(sum of B, D)`; None of what is not given."""
        return _vectors(self.query, query), _vectors(self.code, code)


def _vectors(encoder: nn.Module, texts: Texts) -> Tensor | None:
    return torch.cat([encoder(tokens, mask) for tokens, mask in texts]) if texts else None
