"""A GPT-2 and its training loop in plain PyTorch, as nanoGPT has them.

Source: A. Karpathy, nanoGPT, https://github.com/karpathy/nanoGPT, written anew after its `model.py` and
`train.py` with their defaults: layer norms without biases, learned positions, GELU of four times the width, a
tied head, AdamW whose matrices decay, clipped gradients, and on a CPU float32 without compilation.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIP, DECAY, BETAS = 1.0, 0.1, (0.9, 0.95)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.c_attn(x).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """GPT-2: tokens, int64 `(B, N)`, to logits `(B, N, V)`."""

    def __init__(self, vocabulary: int, context: int, *, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def random_windows(tokens: np.ndarray, context: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield windows of a text at random places, and their next tokens."""
    text = torch.from_numpy(tokens.astype(np.int64))
    while True:
        starts = torch.randint(len(text) - context, (batch,))
        windows = torch.stack([text[i : i + context + 1] for i in starts])
        yield windows[:, :-1], windows[:, 1:]


def make_step(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], dtype: torch.dtype
) -> Callable[[], None]:
    """Return a function that trains on the next batch, in the precision of `dtype`."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=BETAS)
    model.train()

    def step() -> None:
        tokens, targets = next(batches)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
