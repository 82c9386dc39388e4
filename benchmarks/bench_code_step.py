"""Compare training steps of code search with `torch.nn.TransformerEncoder` in a plain loop.

Both train one encoder of queries and code on batches of 1,000 pairs of real functions, with the softmax over
the batch and AdamW. The peer pads a batch to its longest text. This project splits a batch into chunks of
similar lengths, and has no dropout on the attention's weights, with which a CPU has no fused kernel. Without
dropout both compute the same, which is checked first.

    python benchmarks/bench_code_step.py DATA        a folder of functions, such as CoSQA's files
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Row, compare, seconds, write
from torch import Tensor, nn

from automl.config.device import find_device
from automl.config.runtime import Runtime
from automl.task import open_task
from automl.tasks.code_retrieval import CodeData, CodeModel, RetrievalTraining
from automl.tasks.code_retrieval.task import CodeRetrieval
from automl.training.loop import start
from automl.training.step import make_step
from search.config import TrialConfig

DEVICE = find_device()
BATCH, ROUNDS = 1000, 5
DROPOUTS = (0.0, 0.1)


class Peer(nn.Module):
    """Encoder from torch's own layers: token numbers `(B, T)`, 0 at padding, to `(B, D)`."""

    def __init__(self, vocabulary: int, length: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 128)
        self.positions = nn.Parameter(torch.zeros(length, 128))
        self.norm = nn.LayerNorm(128)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(128, 8, 512, dropout, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.score = nn.Linear(128, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        is_token = tokens != 0
        x = self.dropout(self.norm(self.embedding(tokens) + self.positions[: tokens.shape[1]]))
        x = self.layers(x, src_key_padding_mask=~is_token)
        weights = is_token.unsqueeze(2) * self.score(x).sigmoid()
        pooled: Tensor = (weights * x).sum(1) / weights.sum(1)
        return pooled


NAMES = {  # of the peer's parameters, and those of the encoder
    "positions": "places",
    "layers.layers.": "layers.",
    "self_attn.in_proj_": "mixer.in_proj.",
    "self_attn.out_proj.": "mixer.out_proj.",
    "linear1.": "mlp.0.",
    "linear2.": "mlp.2.",
    "score.": "pooling.weight.",
}


def copy_weights(peer: Peer, ours: nn.Module) -> None:
    """Copy the weights of `ours` into the peer."""
    state = ours.state_dict()
    for name, value in peer.state_dict().items():
        for peer_name, own_name in NAMES.items():
            name = name.replace(peer_name, own_name)
        value.copy_(state[name])


def open_retrieval(data: str, dropout: float) -> CodeRetrieval:
    config = TrialConfig(
        task="code-retrieval",
        data=CodeData(path=data),
        model=CodeModel(options={"dropout": dropout}, shared=True),
        training=RetrievalTraining(batch_size=BATCH),
    )
    task = open_task(config, Runtime(device=DEVICE, precision="fp32"))
    assert isinstance(task, CodeRetrieval)
    return task


def plain_batches(task: CodeRetrieval) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled pairs, each side padded to its longest text."""
    rows, draw = task.texts.documented_rows("train"), np.random.default_rng(0)
    while True:
        batch = draw.permutation(rows)[:BATCH]
        yield tuple(
            torch.from_numpy(task.texts.texts[kind].pad(batch, length)[0]).to(DEVICE)
            for kind, length in (("docstring", task.data.query_length), ("code", task.data.code_length))
        )  # type: ignore[misc]


def compare_steps(data: str, dropout: float) -> Row:
    task = open_retrieval(data, dropout)
    state = start(task)
    step = make_step(task, state.model, state.optimizer, state.scaler)
    code: Any = state.model.code
    peer = Peer(len(task.texts.tokenizer), task.data.code_length, dropout).to(DEVICE)
    copy_weights(peer, code)
    tokens = next(plain_batches(task))[1][:50]
    with torch.no_grad():
        torch.testing.assert_close(
            code.eval()(tokens, tokens != 0), peer.eval()(tokens), atol=1e-4, rtol=1e-3
        )
    state.model.train(), peer.train()
    optimizer = torch.optim.AdamW(peer.parameters(), 1e-4)

    def endless() -> Iterator[Any]:
        epoch = 0
        while True:
            yield from task.batches(epoch)
            epoch += 1

    ours, theirs = endless(), plain_batches(task)

    def our_step() -> None:
        step(next(ours), 1e-4)

    def their_step() -> None:
        queries, codes = (F.normalize(peer(texts), dim=1) for texts in next(theirs))
        loss = F.cross_entropy(queries @ codes.T / 0.05, torch.arange(BATCH, device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return compare(
        f"steps of {BATCH} pairs, dropout {dropout:g}",
        "nn.TransformerEncoder",
        lambda: 1 / seconds(our_step, DEVICE),
        lambda: 1 / seconds(their_step, DEVICE),
        unit="steps/s",
        rounds=ROUNDS,
        higher_is_better=True,
    )


if __name__ == "__main__":
    write("code-step", [compare_steps(sys.argv[1], dropout) for dropout in DROPOUTS])
