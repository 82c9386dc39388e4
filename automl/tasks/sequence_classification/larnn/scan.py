"""The loop over time of a LARNN layer as one operation, `scan`, for export.

An exporter writes every step of a loop in Python. For three layers and 128 steps, torch.export takes minutes
and the exporter to ONNX does not finish. `scan` writes one step. It computes the same as
`loop.run` in evaluation. Its window is always full, and states that do not exist yet have a
score of minus infinity.

`scan` accepts only tensors, so a step does not read the batch size but infers it (-1).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from automl.tasks.sequence_classification.larnn.loop import Kind, Weights
from backbones.torch_internals import scan

Carry = tuple[Tensor, Tensor, Tensor, Tensor]


def run(x: Tensor, weights: Weights, kind: Kind) -> Tensor:
    """Return the states, (B, H, T), of `x`, (B, C, T)."""
    H, window, heads = weights.hidden, kind.window, kind.heads
    attention, offsets = weights.attention, weights.offsets
    # `scan` rejects tensors of which one is a view of another.
    inputs, inputs_bias = (w.clone() for w in weights.inputs.tensor_split([-1], 1))
    memory, memory_bias = (w.clone() for w in weights.memory.tensor_split([-1], 1))
    scale = None if weights.query is None else weights.query.unsqueeze(1).clone()
    output = None if weights.output is None else [w.clone() for w in weights.output.tensor_split([-1], 1)]
    affine = (
        None if weights.affine is None else [w.unsqueeze(1).clone() for w in weights.affine.flatten(0, 1)]
    )

    def normalise(y: Tensor, index: int) -> Tensor:
        return y if affine is None else y * affine[2 * index] + affine[2 * index + 1]

    def step(carry: Carry, x_t: Tensor) -> tuple[Carry, Tensor]:
        h, c, before, absent = carry
        now = torch.addmm(memory_bias, memory, c)  # (2H, B)
        states = torch.cat([before[1:], now.unsqueeze(0)])  # (window, 2H, B)
        absent = torch.cat([absent[1:], torch.zeros_like(absent[:1])])
        seen = states if offsets is None else states + offsets.unsqueeze(2)
        if kind.activation:
            seen = F.elu(seen)
        gates, query = torch.addmm(inputs_bias, inputs, torch.cat([x_t, h])).split([4 * H, H])
        if scale is not None:
            query = F.elu(query) * scale
        keys, values = seen.view(window, 2, heads, H // heads, -1).unbind(1)
        scores = (keys * query.view(heads, H // heads, -1)).sum(2)  # (window, heads, B)
        p = (scores + absent).softmax(0)
        attended = (values * p.unsqueeze(2)).sum(0).view(H, -1)
        if output is not None:
            attended = F.elu(torch.addmm(output[1], output[0], attended))
        o, i, f, g = (gates + attention @ normalise(attended, 0)).chunk(4)
        c = normalise(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
        h = normalise(o.sigmoid() * (F.elu(c) if kind.elu else c.tanh()), 2)
        return (h, c, states, absent), h.clone()

    B = x.shape[0]
    start = (
        x.new_zeros(H, B),
        x.new_zeros(H, B),
        x.new_zeros(window, 2 * H, B),
        x.new_full((window, 1, 1), float("-inf")),
    )
    states: Tensor = scan(step, start, x.permute(2, 1, 0))[1]
    return states.permute(2, 1, 0)
