"""An exported decoder of texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from automl.base.lazy import optional
from automl.export.formats import onnx_file
from automl.export.onnx_session import open_onnx
from automl.export.served_decoder import TextDecoder
from automl.tasks.deployment import TOKENIZER

tokenizers = optional("tokenizers", "text")


def open_decoder(folder: Path, graphs: Mapping[str, Any]) -> TextDecoder:
    """Open graphs of an export by their entries in `config.json`. Damaged files raise various errors."""
    runs = {name: open_onnx(folder / onnx_file(name)) for name in graphs}
    file = folder / TOKENIZER
    return TextDecoder(graphs, runs, tokenizers.Tokenizer.from_file(str(file)) if file.exists() else None)
