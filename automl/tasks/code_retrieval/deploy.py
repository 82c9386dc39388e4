"""Deployment of the two encoders of code search: a graph of each, from sub-tokens to vectors.

The graphs find padding in the tokens, so an array of tokens is their only input. Products of the vectors are
the similarities; for the cosine the vectors have length 1.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from automl.task.deployment import TOKENIZER, Deployment
from automl.tasks.code_retrieval import Similarity
from automl.tasks.code_retrieval.data.tokenizer import PADDING, UNKNOWN
from automl.tasks.code_retrieval.score import similarity_vectors

QUERY, CODE = "query", "code"
INPUT, OUTPUT = "tokens", "vectors"

PRODUCTS: Mapping[Similarity, str] = {
    "cosine": (
        ", of length 1: the\nproduct of two is the cosine of their angle, and the largest is the best match."
    ),
    "dot": ": the\nproduct of two is their similarity, and the largest is the best match.",
}


class Vectors(nn.Module):
    """Encoder that finds the padding in the tokens. For the cosine, vectors are divided by their length."""

    def __init__(self, encoder: nn.Module, similarity: Similarity) -> None:
        super().__init__()
        self.encoder, self.similarity = encoder, similarity

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode tokens, int64 `(N, T)`, as vectors, float32 `(N, D)`. A text without tokens gets zeros."""
        return similarity_vectors(self.encoder(tokens, tokens != PADDING), self.similarity)


def encoder_deployment(encoder: nn.Module, tokenizer: str, length: int, similarity: Similarity) -> Deployment:
    """Return the graph of an encoder of texts of up to `length` tokens, given its tokenizer as JSON."""
    device = next((parameter.device for parameter in encoder.parameters()), torch.device("cpu"))
    # The example has a medium length, since torch.export takes a length of 1 for a constant.
    example = torch.full((2, max(2, length // 2)), UNKNOWN, device=device)
    return Deployment(
        module=Vectors(encoder, similarity).to(device),
        inputs={INPUT: example},
        outputs=[OUTPUT],
        dynamic={INPUT: {1: "T"}},
        bounds={"T": (1, length)},
        kind="encoder",
        details={
            "length": length,
            "padding": PADDING,
            "unknown": UNKNOWN,
            "tokenizer": TOKENIZER,
            "similarity": similarity,
        },
        files={TOKENIZER: tokenizer},
    )
