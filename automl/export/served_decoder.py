"""Continue texts with the graphs of an exported decoder. MLflow copies this file into `mlflow-model`.

It imports nothing of this project, and `automl predict` uses it, too. The `details` of a graph in
`config.json` describe its tokens: `tokens` is `bytes`, `sub-words` (of `tokenizer.json`) or `symbols`,
`vocabulary` is the number of different tokens, `end` the token at the end of a document, and `context` the
number of tokens in training.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
COUNT = 64  # new tokens of a text
REQUEST = ("text", "tokens", "temperature", "seed")


class Continued(NamedTuple):
    """New tokens of a text.

    Attributes:
        continuation: The tokens as text. Symbols are separated by spaces.
        tokens: Their numbers. The end of a document is the last, if the model reached it.
        log_probabilities: The logarithm of the probability that the model gave each.
    """

    continuation: str
    tokens: list[int]
    log_probabilities: list[float]


class TextDecoder:
    """Decoder that continues texts.

    Args:
        graphs: Interface and `details` of each graph.
        runs: The graphs `prefill` and `step`, or `model`, as functions of arrays.
        tokenizer: The tokenizer of sub-words.
    """

    def __init__(self, graphs: Mapping[str, Any], runs: Mapping[str, Run], tokenizer: Any = None) -> None:
        self.graphs, self.runs, self._tokenizer = graphs, runs, tokenizer
        details = next(iter(graphs.values()))["details"]
        self.kind, self.vocabulary = details["tokens"], details["vocabulary"]
        self.end, self.context = details["end"], details["context"]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. Raise ValueError if it has none, or an unknown symbol."""
        if self.kind == "symbols":
            words = text.split()
            unknown = [w for w in words if not (w.isascii() and w.isdigit() and int(w) < self.vocabulary)]
            if unknown:
                raise ValueError(
                    f"symbols must be numbers from 0 to {self.vocabulary - 1}, separated by spaces, such as "
                    f'"1 {self.vocabulary - 1} 0 1"; got {unknown[0]!r}'
                )
            tokens = [int(word) for word in words]
        else:
            tokens = list(text.encode())
            if self._tokenizer is not None:
                tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not tokens:
            raise ValueError(f"the text to continue must have a token or more; got {text!r}")
        return tokens

    def decode(self, tokens: list[int]) -> str:
        """Return the text of tokens without the end of a document."""
        if self.kind == "symbols":
            return " ".join(map(str, tokens))
        numbers = [token for token in tokens if token != self.end]
        if self._tokenizer is None:
            return bytes(numbers).decode(errors="replace")
        return str(self._tokenizer.decode(numbers, skip_special_tokens=False))

    def continue_text(
        self, text: str, tokens: int | None = None, temperature: float = 0.0, seed: int = 0
    ) -> Continued:
        """Return the tokens that follow a text.

        Args:
            text: The text, or symbols separated by spaces.
            tokens: The number of new tokens. By default one symbol, or COUNT. A text may end before.
            temperature: Logits are divided by it before tokens are drawn. 0 takes the most probable token.
            seed: The seed of the draws.

        Returns:
            The tokens.

        Raises:
            ValueError: An argument is out of range, or the text has no or too many tokens.
        """
        count = (1 if self.kind == "symbols" else COUNT) if tokens is None else tokens
        if count < 1:
            raise ValueError(f"tokens must be 1 or more; got {count}")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or a positive number; got {temperature}")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more; got {seed}")
        read = self.encode(text)
        length, scores = len(read), []
        if "step" not in self.runs and (longest := length + count - 1) > self.context:
            raise ValueError(
                f"the model has no graph `step` and reads at most {self.context} tokens; got {length} tokens "
                f"to continue by {count}, of which it reads {longest}. Shorten the text, or ask for fewer"
            )
        draw = np.random.default_rng(seed)
        for logits in self._logits(read):
            logits = logits[: self.vocabulary].astype(np.float64)  # a published model may have more
            noise = draw.gumbel(size=len(logits)) if temperature else 0.0
            read.append(int((logits + temperature * noise).argmax()))
            scores.append(float(logits[read[-1]] - np.logaddexp.reduce(logits)))
            if len(scores) == count or read[-1] == self.end:
                break
        return Continued(self.decode(read[length:]), read[length:], scores)

    def _logits(self, tokens: list[int]) -> Iterator[np.ndarray]:
        """Yield the logits after `tokens`, to which the caller appends a token each time."""
        while "step" not in self.runs:
            yield self.runs["model"]({"tokens": np.array([tokens])})["logits"][0, -1]
        outputs = self.runs["prefill"]({"tokens": np.array([tokens])})
        while True:
            yield outputs["logits"][0]
            past = {k.replace("present", "past"): v for k, v in outputs.items() if k != "logits"}
            token, position = np.array([tokens[-1:]]), np.array([len(tokens) - 1])
            outputs = self.runs["step"]({"token": token, "position": position, **past})

    def predict(self, model_input: Any, params: Any = None) -> dict[str, Any]:
        """Return continuations of `{"text": [text, ...]}`, or the outputs of the graph with such inputs.

        `tokens`, `temperature` and `seed` beside `text` are options. Raise MlflowException for invalid
        inputs. A server responds with status 400.
        """
        names = set(model_input) if isinstance(model_input, Mapping) else set()
        try:
            for name, graph in self.graphs.items():
                if names == {entry["name"] for entry in graph["inputs"]}:
                    kinds = {entry["name"]: entry["dtype"] for entry in graph["inputs"]}
                    return dict(self.runs[name]({k: np.asarray(model_input[k], kinds[k]) for k in names}))
            if "text" not in names or not names <= set(REQUEST):
                got = ", ".join(sorted(map(str, names))) or type(model_input).__name__
                raise ValueError(
                    f"the input is `text`, a list of texts, with the options {', '.join(REQUEST[1:])}; "
                    f"got {got}"
                )
            options = {name: np.asarray(model_input[name]).item() for name in names - {"text"}}
            texts = np.atleast_1d(np.asarray(model_input["text"]))
            if texts.ndim > 1 or texts.dtype.kind != "U":
                raise ValueError('text must be a list of texts, such as ["The "]')
            answers = [self.continue_text(str(text), **options) for text in texts]
        except Exception as error:  # onnxruntime raises errors of many types
            from mlflow.exceptions import MlflowException
            from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

            raise MlflowException(str(error), error_code=INVALID_PARAMETER_VALUE) from error
        return {field: [getattr(answer, field) for answer in answers] for field in Continued._fields}


def _load_pyfunc(folder: str) -> TextDecoder:
    """Return the decoder in the folder of an MLflow model."""
    graphs = json.loads((Path(folder) / "about.json").read_text())["graphs"]
    runs = {name: _open(Path(folder) / f"{name}.onnx") for name in graphs}
    file = Path(folder) / "tokenizer.json"
    if not file.exists():
        return TextDecoder(graphs, runs)
    from tokenizers import Tokenizer

    return TextDecoder(graphs, runs, Tokenizer.from_file(str(file)))


def _open(file: Path) -> Run:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # files in the home folder, at import
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))
