"""The LARNN cell as the paper and its code describe it, step by step, for the tests and the benchmark.

It is slow on purpose: keys and values of all states in the window are computed at each step, with the
encodings concatenated to the states, as in `nn.MultiheadAttention`. It reads the weights of a
`automl.tasks.sequence_classification.larnn.backbone.Layer`.
"""

import math
from collections import deque

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from automl.tasks.sequence_classification.larnn.backbone import Layer


def encode_window(window: int) -> Tensor:
    """Encode positions as the paper's code does: cosines, then sines, with the latest state last."""
    b = math.ceil(math.log(window * 4, 2))
    rows = [[math.cos(0.5**i * x * 2 * math.pi) for x in range(window, 0, -1)] for i in range(1, b + 1)]
    rows += [[math.sin(0.5**i * x * 2 * math.pi) for x in range(window, 0, -1)] for i in range(2, b + 2)]
    return torch.tensor(rows, dtype=torch.float64).T


class Restated(nn.Module):
    """LARNN layer with the weights of `layer`: `(B, C, T)` to hidden states `(B, H, T)`."""

    def __init__(self, layer: Layer, *, positional: bool = False) -> None:
        super().__init__()
        self.layer = layer
        # The module converts them to its dtype.
        encoded = encode_window(layer.kind.window).float().to(layer.query.weight.dtype)
        self.encodings = encoded if positional else None

    def forward(self, x: Tensor) -> Tensor:
        B, _, T = x.shape
        h = c = x.new_zeros(B, self.layer.hidden)
        states: deque[Tensor] = deque([c], maxlen=self.layer.kind.window)
        outputs = []
        for t in range(T):
            h, c = self.step(x[:, :, t], h, c, states)  # The states are those of the cells, as in the code.
            states.append(c)
            outputs.append(h)
        return torch.stack(outputs, 2)

    def step(self, x: Tensor, h: Tensor, c: Tensor, states: deque[Tensor]) -> tuple[Tensor, Tensor]:
        layer, H = self.layer, self.layer.hidden
        B, n, heads = len(x), len(states), layer.kind.heads
        past = torch.stack(list(states), 1)  # (B, n, H)
        if self.encodings is not None:
            past = torch.cat([past, self.encodings[-n:].expand(B, -1, -1)], 2)
        keys, values = layer.keys(past), layer.values(past)
        if layer.kind.activation:
            keys, values = F.elu(keys), F.elu(values)
        if layer.norm is not None:
            keys, values = self.normalise(keys, slice(0, H)), self.normalise(values, slice(H, 2 * H))
        query = layer.query(torch.cat([x, h], 1))
        query = (F.elu(query) if layer.activated_query else query).view(B, 1, heads, -1)
        keys, values = (y.view(B, n, heads, -1) for y in (keys, values))
        query, keys, values = (y.transpose(1, 2) for y in (query, keys, values))
        scores = query @ keys.mT / math.sqrt(H // heads)
        a = (scores.softmax(-1) @ values).transpose(1, 2).reshape(B, H)
        if layer.output is not None:
            a = F.elu(layer.output(a))
        a = self.normalise_step(a, 0)
        if layer.mode == "layer":
            gates = layer.from_all(torch.cat([x, h, a], 1))
        else:
            gates = layer.from_input(x) + layer.from_hidden(h) + layer.from_attention(a)
        o, i, f, g = gates.chunk(4, 1)
        c = self.normalise_step(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
        return self.normalise_step(o.sigmoid() * (F.elu(c) if layer.kind.elu else c.tanh()), 2), c

    def normalise_step(self, y: Tensor, index: int) -> Tensor:
        """Apply `batch_norm_attention_result`, `batch_norm_cell` or `batch_norm_post_activation`."""
        norm = self.layer.cell_norm
        if norm is None:
            return y
        mean, variance = (
            (None, None) if norm.training else (norm.running_mean[index], norm.running_var[index])
        )
        training = norm.training
        return F.batch_norm(y, mean, variance, norm.weight[index], norm.bias[index], training, 0.0, norm.eps)

    def normalise(self, y: Tensor, rows: slice) -> Tensor:
        norm, H = self.layer.norm, y.shape[-1]
        assert norm is not None
        bias = norm.bias if rows.start else torch.zeros_like(norm.bias)
        flat = y.reshape(-1, H)
        training = norm.training
        mean, variance = (None, None) if training else (norm.running_mean[rows], norm.running_var[rows])
        normal = F.batch_norm(flat, mean, variance, norm.weight[rows], bias, training, 0.0, norm.eps)
        return normal.view(y.shape)
