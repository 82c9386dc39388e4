"""An exported encoder of texts."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from automl.export.formats import onnx_file, open_onnx
from automl.tasks.code_retrieval.data.tokenizer import Tokenizer
from automl.tasks.code_retrieval.deploy import INPUT, OUTPUT
from automl.tasks.deployment import TOKENIZER

BATCH = 64  # texts at once


class TextEncoder:
    """Graph of an export with its tokenizer. Damaged files raise various errors.

    Attributes:
        channels: Size of a vector.
        key: Hash of the model, the tokenizer and the maximum length.
    """

    def __init__(self, folder: Path, graph: str, about: Mapping[str, Any]) -> None:
        """Open a graph. `about` is its entry in `config.json`."""
        file, details = folder / onnx_file(graph), about["details"]
        content = (folder / TOKENIZER).read_text(encoding="utf-8")
        self.tokenizer = Tokenizer(content)
        self.length: int = details["length"]
        self.channels: int = about["outputs"][0]["shape"][1]
        self.key = hashlib.sha256(file.read_bytes() + content.encode() + b"%d" % self.length).digest()
        self._run = open_onnx(file)

    def encode(self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> np.ndarray:
        """Return vectors `(N, D)` in the order of the texts. `advance` gets the number of texts done."""
        vectors = np.empty((len(texts), self.channels), np.float32)
        # Sort texts by length, since a batch is padded to its longest text.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            tokens, _ = self.tokenizer.encode([texts[i] for i in rows], self.length)
            vectors[rows] = self._run({INPUT: tokens})[OUTPUT]
            advance(len(rows))
        return vectors
