"""Two encoders, one of queries and one of the searched texts, whose vectors are compared."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Texts in several batches of tokens, int `(B, T)`, and mask, bool `(B, T)`. Each batch has its own B and T.
Texts = Sequence[tuple[Tensor, Tensor]]


class TwoTowers(nn.Module):
    """Two encoders of text.

    Source: B. Mitra, N. Craswell, An Introduction to Neural Information Retrieval (2018), section 6.2.

    Args:
        query: Encoder of queries: tokens `(B, T)` and mask `(B, T)` to `(B, D)`.
        code: Encoder of code. It may be the same module.
    """

    def __init__(self, query: nn.Module, code: nn.Module) -> None:
        super().__init__()
        self.query, self.code = query, code

    def forward(self, query: Texts = (), code: Texts = ()) -> tuple[Tensor | None, Tensor | None]:
        """Return the vectors of the queries and of the code, `(sum of B, D)` each. None for missing ones."""
        return _vectors(self.query, query), _vectors(self.code, code)


def _vectors(encoder: nn.Module, texts: Texts) -> Tensor | None:
    return torch.cat([encoder(tokens, mask) for tokens, mask in texts]) if texts else None
