"""Search a folder of code with an exported model, and read functions whose attention maps it draws."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.base.terminal import Summary
from automl.export.formats import onnx_file
from automl.export.predict import Exported, check_written, exported_folder, no_export, read_exported
from automl.export.run_maps import MapReader, Shown
from automl.task.deployment import TOKENIZER
from automl.tasks.code_retrieval.data.source_folder import list_source_files, read_source_file
from automl.tasks.code_retrieval.data.tokenizer import Tokenizer
from automl.tasks.code_retrieval.deploy import CODE, INPUT, QUERY
from automl.tasks.code_retrieval.index import TextEncoder, open_index

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


def read_code(
    folder: Path, about: Mapping[str, Any], files: Sequence[str | Path], trust: bool
) -> Iterator[Shown]:
    """Yield the functions of source files."""
    try:
        tokenizer = Tokenizer((folder / TOKENIZER).read_text(encoding="utf-8"))
        length = about["graphs"][CODE]["details"]["length"]
    except Exception as error:  # the files may have any content
        raise no_export(folder, error) from error
    for path in map(Path, files):
        for file in list_source_files(path) if path.is_dir() else [path]:
            functions = read_source_file(file, str(file))
            if isinstance(functions, str):
                raise InputError(f"{file} cannot be read as source code: {functions}")
            for function in functions:
                tokens, _ = tokenizer.encode([function.code], length)
                yield Shown(
                    name=f"{function.location} {function.name}",
                    stem=f"{file.stem}-{function.line}",
                    arrays={INPUT: tokens},
                    extents=(tokens.shape[1],),
                    tokens=tokenizer.names(tokens[0]),
                )


READER = MapReader(graph=CODE, read=read_code)
