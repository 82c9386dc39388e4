"""Replace operations that the ONNX exporter cannot translate."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, ops
from torch.export import ExportedProgram


def for_onnx(program: ExportedProgram) -> ExportedProgram:
    """Return the program with every scaled dot-product attention in four dimensions.

    torch 2.15 cannot export others, as in models with windows (Hiera) or without a dimension of heads (SAM).
    """
    table = {ops.aten.scaled_dot_product_attention.default: _in_four_dimensions}
    decomposed: ExportedProgram = program.run_decompositions(table)
    return decomposed


def _in_four_dimensions(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
) -> Any:
    """Reshape queries, keys and values `(*any, length, width)` to `(product of any, 1, length, width)`."""
    if query.ndim == 4:
        return NotImplemented
    before = query.shape[:-2]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*before, *attn_mask.shape[-2:]).reshape(-1, 1, *attn_mask.shape[-2:])
    query, key, value = (t.reshape(-1, 1, *t.shape[-2:]) for t in (query, key, value))
    update = F.scaled_dot_product_attention(query, key, value, attn_mask, *rest, **named)
    return update.reshape(*before, *update.shape[-2:])
