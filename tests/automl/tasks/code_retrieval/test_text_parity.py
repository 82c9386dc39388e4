"""Text encoders compared with a reference that is written out from the TensorFlow code of CodeSearchNet.

The reference follows `ConvSelfAttentionEncoder`, `ConvolutionSeqEncoder`, `BertModel` and
`pool_sequence_embedding` step by step, on texts of the full length. It shares no code with the encoders.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from automl.tasks.code_retrieval.model import ENCODERS, Encoder

VOCABULARY, LENGTH, WIDTH, HEADS = 40, 11, 16, 4
SMALL = {"hidden": WIDTH, "heads": HEADS, "intermediate": 24}
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
    "relu": lambda x: (x + x.abs()) / 2,
    "leaky_relu": lambda x: torch.maximum(x, 0.2 * x),
    "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "selu": lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * (x.exp() - 1)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
}


def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `tf.layers.conv1d` with padding="same". Of k - 1 zeros, the smaller half comes first."""
    kernel = weight.shape[2]
    before = (kernel - 1) // 2
    out = bias.repeat(x.shape[0], x.shape[1], 1)
    for t in range(x.shape[1]):
        for offset in range(kernel):
            source = t + offset - before
            if 0 <= source < x.shape[1]:
                out[:, t] += x[:, source] @ weight[:, :, offset].T
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `tf.contrib.layers.layer_norm`."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred**2).mean(-1, keepdim=True)
    return centred / (variance + 1e-12).sqrt() * weight + bias


def bert_layer(x: Tensor, state: dict[str, Tensor], name: str, activation: str) -> Tensor:
    def dense(x: Tensor, layer: str) -> Tensor:
        return x @ state[f"{name}.{layer}.weight"].T + state[f"{name}.{layer}.bias"]

    q, k, v = dense(x, "mixer.in_proj").split(WIDTH, dim=-1)
    size = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        columns = slice(head * size, (head + 1) * size)
        scores = q[..., columns] @ k[..., columns].mT / math.sqrt(size)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        heads.append(weights @ v[..., columns])
    attended = dense(torch.cat(heads, -1), "mixer.out_proj")
    x = layer_norm(attended + x, state[f"{name}.norm1.weight"], state[f"{name}.norm1.bias"])
    inner = FUNCTIONS[activation](dense(x, "mlp.0"))
    return layer_norm(dense(inner, "mlp.2") + x, state[f"{name}.norm2.weight"], state[f"{name}.norm2.bias"])


def pool(x: Tensor, state: dict[str, Tensor], mode: str) -> Tensor:
    if mode == "bert":
        return FUNCTIONS["tanh"](x[:, 0] @ state["pooling.dense.weight"].T + state["pooling.dense.bias"])
    if mode == "max":
        return x.max(1).values
    if mode == "mean":
        return x.sum(1) / x.shape[1]
    weights = 1 / (1 + (-(x @ state["pooling.weight.weight"].T)).exp())  # (B, T, 1), without a bias
    return (x * weights).sum(1) / weights.sum(1)


def reference(encoder: Encoder, tokens: Tensor, counts: tuple[int, int], options: dict[str, Any]) -> Tensor:
    """Compute the reference. `counts` are the numbers of convolutions and of self-attention layers."""
    convolutions, layers = counts
    state = encoder.state_dict()
    x = state["embedding.weight"][tokens]
    if not layers and "places" in state:
        x = x + state["places"]
    for i in range(convolutions):
        name = f"layers.{i}.branch.1"
        y = convolution(x, state[f"{name}.weight"], state[f"{name}.bias"])
        if i > 0 and options.get("residual", True):
            y = y + x
        x = FUNCTIONS[options.get("cnn_activation", "tanh")](y)
    if layers:
        x = layer_norm(x + state["places"], state["norm.weight"], state["norm.bias"])
    for i in range(convolutions, convolutions + layers):
        x = bert_layer(x, state, f"layers.{i}", options.get("attention_activation", "gelu"))
    return pool(x, state, options.get("pooling", "weighted_mean"))


def build_encoder(name: str, options: dict[str, Any]) -> tuple[Encoder, Tensor]:
    torch.manual_seed(0)
    chosen = {key: value for key, value in SMALL.items() if key in ENCODERS[name].options}
    encoder = ENCODERS[name].build(vocabulary=VOCABULARY, length=LENGTH, **{**chosen, **options})
    assert isinstance(encoder, Encoder)
    with torch.no_grad():
        for parameter in encoder.parameters():  # Biases start at zero, which would hide an error.
            parameter += 0.3 * torch.randn(parameter.shape)
    return encoder.double().eval(), torch.randint(0, VOCABULARY, (3, LENGTH))


@pytest.mark.parametrize(
    ("name", "counts", "options"),
    [
        ("cnn-selfattention", (2, 2), {}),  # as published
        ("cnn-selfattention", (2, 2), {"pooling": "bert"}),
        ("cnn-selfattention", (2, 1), {"layers": 1, "residual": False}),
        (
            "cnn-selfattention",
            (3, 1),
            {"layers": 1, "convolutions": 3, "kernel": 3, "cnn_activation": "selu"},
        ),
        ("cnn-selfattention", (1, 1), {"layers": 1, "convolutions": 1, "attention_activation": "elu"}),
        ("selfattention", (0, 2), {}),
        ("selfattention", (0, 3), {"layers": 3, "attention_activation": "relu", "pooling": "max"}),
        ("cnn", (3, 0), {}),
        ("cnn", (2, 0), {"convolutions": 2, "residual": False, "pooling": "mean"}),
        ("cnn", (3, 0), {"kernel": 9, "cnn_activation": "leaky_relu"}),
        ("cnn", (3, 0), {"positions": "none", "cnn_activation": "linear", "pooling": "bert"}),
    ],
    ids=str,
)
def test_encoders_equal_codesearchnets(name: str, counts: tuple[int, int], options: dict[str, Any]) -> None:
    encoder, tokens = build_encoder(name, options)
    with torch.no_grad():
        vectors = encoder(tokens, torch.ones_like(tokens, dtype=torch.bool))
        expected = reference(encoder, tokens, counts, options)
    assert vectors.shape == expected.shape
    assert (vectors - expected).abs().max() <= 1e-10
