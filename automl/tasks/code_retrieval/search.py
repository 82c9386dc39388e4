"""Search a folder of code with an exported model.

The vectors of a folder's functions, by an exported encoder, are one memory-mapped Arrow file in the cache.
Its name is a hash of the encoder and the code, so changed code is encoded again.

A query is one matrix product with all vectors. For a million vectors of 128 numbers it takes 22 ms on two
cores, and 60 ms to open and check the file (benchmarks/bench_code_index.py). So approximate search (faiss) is
not needed.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from automl.base.errors import InputError
from automl.base.terminal import Summary, progress
from automl.base.units import pluralize
from automl.data.arrow import ArrowFile, write_columns
from automl.export.formats import onnx_file, open_onnx
from automl.export.predict import Exported, check_written, exported_folder, no_export, read_exported
from automl.task.deployment import TOKENIZER
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.source_folder import read_source_folder
from automl.tasks.code_retrieval.data.tokenizer import Tokenizer
from automl.tasks.code_retrieval.deploy import CODE, INPUT, OUTPUT, QUERY

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


class CodeVectors(ArrowFile):
    """Vectors of the functions of a folder, memory-mapped, float32 `(N, D)`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        column = self.table["vector"].chunk(0)
        self.vectors: np.ndarray = column.values.to_numpy().reshape(len(column), -1)
        # Pages that were not written before a crash are zero. A vector is not, as each function has a token.
        lengths = np.einsum("nd,nd->n", self.vectors, self.vectors)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise ValueError("a vector is missing")


def open_vectors(functions: Sequence[Function], encoder: TextEncoder) -> np.ndarray:
    """Return the vectors of functions, float32 `(N, D)`, from the cache folder if all were encoded before.

    Raise InputError if the cache cannot be written.
    """
    codes = [_text(function.code) for function in functions]

    def write(path: Path) -> str:
        with progress("encoding functions", len(codes)) as advance:
            write_vectors(path, encoder.encode(codes, advance))
        return f"encoded {pluralize(len(codes), 'functions')}"

    key = b"code vectors" + encoder.key + "\0".join(codes).encode()
    return CodeVectors.open_cached(key, write, needed=4 * len(codes) * encoder.channels).vectors


def write_vectors(path: Path, vectors: np.ndarray) -> None:
    """Write vectors, float32 `(N, D)`."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    write_columns(path, {"vector": column}, {})


def find_nearest(vectors: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the `count` nearest vectors of each query, the best first, and their scores.

    `vectors` are float32 `(N, D)`, `queries` float32 `(Q, D)`, and both results `(Q, min(count, N))`.
    """
    scores = queries @ vectors.T
    count = min(count, len(vectors))
    rows = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
    order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1, kind="stable")
    rows = np.take_along_axis(rows, order, axis=1)
    return rows, np.take_along_axis(scores, rows, axis=1)


def _text(text: str) -> str:
    """Replace surrogates, which the tokenizer rejects."""
    return text.encode("utf-8", "replace").decode()


TOP = 10


@dataclass(frozen=True, kw_only=True)
class Hit:
    """Function that matches a query.

    Attributes:
        score: Similarity to the query.
        file: Its file.
        line: Its line.
        name: Its name.
        summary: First line of its docstring.
    """

    score: float
    file: str
    line: int
    name: str
    summary: str

    def __str__(self) -> str:
        return f"{self.score:.3f}  {self.file}:{self.line}  {self.name}  {self.summary}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Functions that match a query, the best first."""

    query: str
    hits: Sequence[Hit]

    def to_json(self) -> dict[str, Any]:
        """Return the answer as JSON."""
        return {"query": self.query, "functions": [*map(asdict, self.hits)]}


@dataclass(frozen=True, kw_only=True, repr=False)
class CodeSearch(Summary):
    """Result of a code search.

    Attributes:
        answers: The best functions for each query, in the order of the queries.
        functions: The number of searched functions.
        skipped: The reasons of skipped files, by name.

    Example:
        After the example of `run_code_search`:

        >>> searched.answers[0].query
        'read a file'
    """

    answers: Sequence[Answer]
    functions: int
    skipped: Mapping[str, str]

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines that the command prints, as label and text."""
        for answer in self.answers:
            yield "query", answer.query
            for hit in answer.hits:
                yield "", str(hit)


def run_code_search(
    exported: str | Path | Exported, queries: Sequence[str], *, corpus: str | Path, top: int = TOP
) -> CodeSearch:
    """Search the functions in and below a folder with an exported model.

    The vectors of the functions are cached, and computed again when code has changed.

    Args:
        exported: The folder of an exported model for code search, or the result of `run_export`.
        queries: The queries, in words.
        corpus: The folder with the code.
        top: The number of functions for each query.

    Returns:
        The best functions for each query.

    Raises:
        InputError: The folder has no model for code search, the model knows no word of a query, or `corpus`
            has no functions.

    Example:
        >>> import automl
        >>> searched = automl.run_code_search("exports/code", ["read a file"], corpus="corpus", top=2)
        >>> [len(answer.hits) for answer in searched.answers]
        [2]
    """
    if top < 1:
        raise InputError(f"--top must be 1 or more; got {top}")
    if not queries:
        raise InputError('give at least one query, such as "read a csv file"')
    encoders = _open(exported_folder(exported))
    for query in queries:
        encoders[QUERY].tokenizer.check_known(query)
    source = read_source_folder(corpus)
    vectors = open_vectors(source.functions, encoders[CODE])
    rows, scores = find_nearest(vectors, encoders[QUERY].encode(queries), top)
    answers = []
    for query, nearest, values in zip(queries, rows.tolist(), scores.tolist(), strict=True):
        hits = []
        for function, score in zip(map(source.functions.__getitem__, nearest), values, strict=True):
            name, summary = _text(function.name), _text(function.docstring.strip().partition("\n")[0].strip())
            hits.append(Hit(score=score, file=function.file, line=function.line, name=name, summary=summary))
        answers.append(Answer(query=query, hits=hits))
    return CodeSearch(answers=answers, functions=len(vectors), skipped=source.skipped)


def _open(folder: Path) -> dict[str, TextEncoder]:
    exported = read_exported(folder)
    graphs = exported["graphs"]
    if not {QUERY, CODE} <= set(graphs):
        task = exported["config"].get("task", "another task")
        raise InputError(f"--corpus needs a model for code search; the one in {folder} is for {task}")
    for name in (QUERY, CODE):
        check_written(folder, exported, onnx_file(name))
    try:
        return {name: TextEncoder(folder, name, graphs[name]) for name in (QUERY, CODE)}
    except Exception as error:  # onnxruntime raises different errors for different damage
        raise no_export(folder, error) from error
