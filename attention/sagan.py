"""Self-attention of SAGAN: `y = x + gamma * h softmax(f^T g)`, with C/8 channels for f and g.

Source: H. Zhang et al., Self-Attention Generative Adversarial Networks (2018), arXiv 1805.08318, equations 1
to 3, in the form of fastai's `SelfAttention`. That has 1x1 convolutions f, g, h without bias, each spectrally
normalised, and no 1/sqrt(d) in the softmax.

The softmax runs over the positions of f for each position of g, so g gives the queries and f the keys. This
is `scaled_dot_product_attention` with query g, key f, value h and scale 1.

Two forms compute the same function. `fused` calls torch's kernel, which does not keep the N x N weights on an
accelerator, nor on a CPU from `FUSED_FROM` positions. `explicit` computes the weights by the equations and
keeps them for the backward pass. Its memory is quadratic in N on every device.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from attention.attention_map import AttentionMap, softmax_map
from attention.gated import Cost, Gated, project
from attention.options import check_choice

Form = Literal["fused", "explicit"]

# From this many positions, the CPU uses the kernel that does not keep the N x N weights. Below, the weights
# are small, and computing them takes up to a third less time than the wider products of that kernel.
FUSED_FROM = 2048


class SelfAttention(Gated):
    """SAGAN self-attention.

    Args:
        channels: Number of channels C of the features.
        form: `fused` calls torch's attention kernel. `explicit` computes and keeps the N x N matrix of
            weights, as conventional attention was published.

    Raises:
        InputError: The form is unknown.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if `layout` is `B*C`.
    """

    def __init__(self, channels: int, *, form: Form = "fused") -> None:
        super().__init__(channels)
        check_choice("form", form, Form)
        self.form = form
        self.f = nn.Linear(channels, inner_channels(channels), bias=False)
        self.g = nn.Linear(channels, inner_channels(channels), bias=False)
        self.h = nn.Linear(channels, channels, bias=False)
        for layer in (self.f, self.g, self.h):
            spectral_norm(layer)

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        if self.form == "explicit":
            f, g, h = (project(layer, x) for layer in (self.f, self.g, self.h))  # (B, N, d)
            scores = g @ f.mT  # (B, N, N)
            if mask is not None:
                scores = scores.masked_fill(~mask.unsqueeze(1), float("-inf"))
            return scores.softmax(dim=-1) @ h  # (B, N, C)
        f, g, h = (project(layer, x).unsqueeze(1) for layer in (self.f, self.g, self.h))  # (B, 1, N, d)
        N = x.shape[1]  # N is a symbol in an export for any length.
        if x.device.type == "cpu" and not isinstance(N, torch.SymInt) and N >= FUSED_FROM:
            # The fused kernel of CPUs needs queries, keys and values of one width. Zeros change no product
            # and avoid the N x N weights: 305 ms instead of 1073 ms at N = 4096, C = 64 in bfloat16 on two
            # cores.
            f, g = (F.pad(t, (0, h.shape[-1] - t.shape[-1])) for t in (f, g))
        keys = None if mask is None else mask[:, None, None]  # (B, 1, 1, N)
        return F.scaled_dot_product_attention(g, f, h, attn_mask=keys, scale=1.0).squeeze(1)  # (B, N, C)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap:
        f, g = (project(layer, x).unsqueeze(1) for layer in (self.f, self.g))  # (B, 1, N, d)
        return softmax_map(g, f, spatial=spatial, mask=mask)


def inner_channels(channels: int) -> int:
    """Return the number of channels of f and g: an eighth of `channels`, at least one."""
    return max(1, channels // 8)


def cost(channels: int, spatial: Sequence[int], *, form: Form = "fused") -> Cost:
    """Compute the cost of one `SelfAttention`."""
    C, N, d = channels, prod(spatial), inner_channels(channels)
    return Cost(
        parameters=C * C + 2 * C * d + 1,
        macs=N * C * C + 2 * N * C * d + N * N * (C + d),
        # f, g, h, the update, and the log-sum-exp of the fused kernel or all weights.
        memory=2 * N * C + 2 * N * d + (N * N if form == "explicit" else N),
    )
