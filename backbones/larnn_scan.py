"""The loop over time of a LARNN layer as one operation, `scan`: the form that is exported.

Of a loop in Python an exporter writes every step: for three layers and 128 steps torch.export takes minutes
and the exporter to ONNX does not come to an end. Here a step is written once. It computes what
backbones.larnn_loop.steps does, for evaluation, and takes a window that is always full, in which a state that
does not exist yet has a score of minus infinity.

Sizes of the batch are not read in a step, only inferred (-1): `scan` takes tensors alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.larnn_loop import Kind, Weights
from backbones.torch_internals import scan

Carry = tuple[Tensor, Tensor, Tensor, Tensor]


def run(x: Tensor, weights: Weights, kind: Kind) -> Tensor:
    """The states, (B, H, T), of `x`, (B, C, T)."""
    H, window, heads = weights.hidden, kind.window, kind.heads
    attention, places = weights.attention, weights.places
    # `scan` refuses tensors of which one is a view of another.
    inputs, inputs_bias = (w.clone() for w in weights.inputs.tensor_split([-1], 1))
    memory, memory_bias = (w.clone() for w in weights.memory.tensor_split([-1], 1))
    scale = None if weights.query is None else weights.query.unsqueeze(1).clone()
    output = None if weights.output is None else [w.clone() for w in weights.output.tensor_split([-1], 1)]
    affine = (
        None if weights.affine is None else [w.unsqueeze(1).clone() for w in weights.affine.flatten(0, 1)]
    )

    def normal(y: Tensor, which: int) -> Tensor:
        return y if affine is None else y * affine[2 * which] + affine[2 * which + 1]

    def step(carry: Carry, x_t: Tensor) -> tuple[Carry, Tensor]:
        h, c, before, absent = carry
        now = torch.addmm(memory_bias, memory, c)  # (2H, B)
        states = torch.cat([before[1:], now.unsqueeze(0)])  # (window, 2H, B)
        absent = torch.cat([absent[1:], torch.zeros_like(absent[:1])])
        seen = states if places is None else states + places.unsqueeze(2)
        if kind.activation:
            seen = F.elu(seen)
        gates, query = torch.addmm(inputs_bias, inputs, torch.cat([x_t, h])).split([4 * H, H])
        if scale is not None:
            query = F.elu(query) * scale
        keys, values = seen.view(window, 2, heads, H // heads, -1).unbind(1)
        scores = (keys * query.view(heads, H // heads, -1)).sum(2)  # (window, heads, B)
        p = (scores + absent).softmax(0)
        found = (values * p.unsqueeze(2)).sum(0).view(H, -1)
        if output is not None:
            found = F.elu(torch.addmm(output[1], output[0], found))
        o, i, f, g = (gates + attention @ normal(found, 0)).chunk(4)
        c = normal(f.sigmoid() * c + i.sigmoid() * g.tanh(), 1)
        h = normal(o.sigmoid() * (F.elu(c) if kind.elu else c.tanh()), 2)
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
