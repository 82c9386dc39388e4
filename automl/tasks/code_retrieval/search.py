"""Search a folder of code with an exported model.

The index of a folder has a vector of each function, by an exported encoder. It is one memory-mapped Arrow
file. Columns: file, line, name, summary (the first line of the docstring), code
(SHA-256 of the encoded code) and vector (float32). The metadata of the schema contains the size and the time
of change of each source file, to detect changes, and the reasons why files were skipped.

A query is one matrix product with all vectors. For a million vectors of 128 numbers it takes 22 ms on two
cores, and 60 ms to open and check the file (benchmarks/bench_code_index.py). So approximate search (faiss) is
not needed.
"""

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from automl.base.errors import InputError
from automl.base.terminal import Summary, progress
from automl.base.units import pluralize
from automl.data.arrow import ArrowFile, write_columns
from automl.data.files import SIZE, name_to_text
from automl.export.formats import onnx_file, open_onnx
from automl.export.predict import Exported, check_written, exported_folder, no_export, read_exported
from automl.storage.cache_folder import cache_root, once
from automl.task.deployment import TOKENIZER
from automl.tasks.code_retrieval.data.python import Function
from automl.tasks.code_retrieval.data.source_folder import (
    list_source_files,
    no_functions_error,
    read_source_file,
    resolve_code_folder,
)
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


FORMAT = 2  # increase it when the file or the reader of code changes

COLUMNS = {  # of `Indexed`, with their types
    "file": pa.string(),
    "line": pa.int32(),
    "name": pa.string(),
    "summary": pa.string(),
    "code": pa.binary(SIZE),
}

Stamp = tuple[int, int]  # size [bytes] and time of change [ns] of a file


class CodeIndex(ArrowFile):
    """Opened index of N functions.

    Attributes:
        vectors: Memory-mapped vectors, float32 `(N, D)`.
        files: Stamp of each file, and the reason why it was skipped or None.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.table.validate(full=True)
        self.files: dict[str, tuple[Stamp, str | None]] = {
            file: ((size, changed), why) for file, (size, changed, why) in self.about["files"].items()
        }
        column = self.table["vector"].chunk(0)
        self.vectors: np.ndarray = column.values.to_numpy().reshape(len(column), -1)
        # Pages that were not written before a crash are zero. A vector is not, as each function has a token.
        lengths = np.einsum("nd,nd->n", self.vectors, self.vectors)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise ValueError("a vector is missing")

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def skipped(self) -> dict[str, str]:
        """Return the reasons of skipped files, by name."""
        return {file: why for file, (_, why) in self.files.items() if why is not None}

    @cached_property
    def functions(self) -> "list[Indexed]":
        """All functions. `read` returns the columns of some."""
        return [Indexed(**row) for row in self.table.select(list(COLUMNS)).to_pylist()]

    def read(self, rows: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return some columns of the functions in these rows."""
        functions: list[dict[str, Any]] = self.table.select(columns).take(rows).to_pylist()
        return functions

    def best(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of the `count` nearest functions of each query, the best first, and their scores.

        Args:
            queries: Vectors of the queries, float32 `(Q, D)`.
            count: Number of functions for each query.

        Returns:
            Rows and scores, both `(Q, min(count, N))`.
        """
        scores = queries @ self.vectors.T
        count = min(count, len(self))
        rows = np.sort(np.argpartition(-scores, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(scores, rows, axis=1), axis=1, kind="stable")
        rows = np.take_along_axis(rows, order, axis=1)
        return rows, np.take_along_axis(scores, rows, axis=1)


@dataclass(frozen=True)
class Indexed:
    """Function of an index. `summary` is the first line of its docstring, or empty."""

    file: str
    line: int
    name: str
    summary: str
    code: bytes

    @property
    def location(self) -> str:
        """Return the file and the line."""
        return f"{self.file}:{self.line}"


def open_index(folder: str | Path, encoder: TextEncoder) -> CodeIndex:
    """Return the up-to-date index of the source files in and below `folder`.

    It is stored in the cache folder, one for each encoder. Only changed files are read again, and only new
    code is encoded.

    Raise InputError if the folder does not exist or has no functions, or the cache cannot be written.
    """
    root = resolve_code_folder(folder).resolve()
    stamps = {name_to_text(path.relative_to(root)): (path, _stamp(path)) for path in list_source_files(root)}
    key = hashlib.sha256(encoder.key + os.fsencode(root) + b"%d" % FORMAT).hexdigest()[:32]
    target = cache_root() / "code-index" / f"{key}.arrow"
    opened: list[CodeIndex] = []

    def current(path: Path) -> bool:
        opened[:] = [CodeIndex(path)] if CodeIndex.is_sound(path) else []
        return bool(opened) and {file: stamp for file, (stamp, _) in opened[0].files.items()} == {
            file: stamp for file, (_, stamp) in stamps.items()
        }

    def write(path: Path) -> None:
        if target.exists() and not opened:
            print(f"the index {target} is damaged and will be rebuilt", file=sys.stderr, flush=True)
        _write(path, root, stamps, encoder, opened[0] if opened else None)
        opened.clear()

    once(target, write, current)
    return opened[0] if opened else CodeIndex(target)


def write_index(
    path: Path,
    functions: Sequence[Indexed],
    vectors: np.ndarray,
    files: Mapping[str, tuple[Stamp, str | None]],
) -> None:
    """Write the file. `vectors` are those of the functions, float32 `(N, D)`."""
    columns = {
        name: pa.array([getattr(function, name) for function in functions], kind)
        for name, kind in COLUMNS.items()
    }
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    write_columns(path, columns, {"files": {file: (*stamp, why) for file, (stamp, why) in files.items()}})


def _write(
    path: Path,
    root: Path,
    stamps: Mapping[str, tuple[Path, Stamp]],
    encoder: TextEncoder,
    old: CodeIndex | None,
) -> None:
    """Write the index to `path`. Reuse entries of the old one."""
    begin = time.monotonic()
    functions_of = groupby([] if old is None else old.functions, key=attrgetter("file"))
    before = {file: list(indexed) for file, indexed in functions_of}
    known = {} if old is None else {function.code: row for row, function in enumerate(old.functions)}
    functions: list[Indexed] = []
    files: dict[str, tuple[Stamp, str | None]] = {}
    codes: dict[bytes, str] = {}  # code to encode, without duplicates
    with progress("reading files of code", len(stamps)) as advance:
        for file, (source_path, stamp) in stamps.items():
            if old is not None and file in old.files and old.files[file][0] == stamp:
                functions += before.get(file, [])
                files[file] = old.files[file]
            else:
                source = read_source_file(source_path, file)
                files[file] = (stamp, source if isinstance(source, str) else None)
                for function in () if isinstance(source, str) else source:
                    code = _text(function.code)
                    functions.append(_indexed(function, code))
                    if functions[-1].code not in known:
                        codes[functions[-1].code] = code
            advance(1)
    if not functions:
        raise no_functions_error(root, {file: why for file, (_, why) in files.items() if why is not None})
    with progress("encoding functions", len(codes)) as advance:
        encoded = encoder.encode(list(codes.values()), advance)
    rows = {code: row for row, code in enumerate(codes)}
    vectors = np.empty((len(functions), encoder.channels), np.float32)
    for row, indexed in enumerate(functions):
        if indexed.code in rows:
            vectors[row] = encoded[rows[indexed.code]]
        else:
            assert old is not None, "known vectors come from the old index"
            vectors[row] = old.vectors[known[indexed.code]]
    write_index(path, functions, vectors, files)
    if old is None:
        done = f"{pluralize(len(functions), 'functions')} of {pluralize(len(files), 'files')}"
        print(f"indexed {done} in {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    elif codes or len(functions) < len(old):
        print(f"updated the index: {pluralize(len(codes), 'functions')} encoded", file=sys.stderr, flush=True)


def _indexed(function: Function, code: str) -> Indexed:
    summary = _text(function.docstring.strip().partition("\n")[0].strip())
    key = hashlib.sha256(code.encode()).digest()
    return Indexed(function.file, function.line, _text(function.name), summary, key)


def _text(text: str) -> str:
    """Replace surrogates, which Arrow and the tokenizer reject."""
    return text.encode("utf-8", "replace").decode()


def _stamp(path: Path) -> Stamp:
    try:
        state = path.stat()
    except OSError:  # a broken link, which is skipped
        return 0, 0
    return state.st_size, state.st_mtime_ns


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

    The vectors of the functions are cached, and updated when files have changed.

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
    index = open_index(corpus, encoders[CODE])
    rows, scores = index.best(encoders[QUERY].encode(queries), top)
    answers = []
    for query, nearest, values in zip(queries, rows.tolist(), scores.tolist(), strict=True):
        functions = index.read(nearest, ("file", "line", "name", "summary"))
        hits = [Hit(score=score, **row) for row, score in zip(functions, values, strict=True)]
        answers.append(Answer(query=query, hits=hits))
    return CodeSearch(answers=answers, functions=len(index), skipped=index.skipped)


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
