"""The files of CoSQA's retrieval task: functions, and queries that people typed with their answers.

Source: J. Huang et al., CoSQA (2021), arXiv 2105.13239, whose CoCLR made the split. The folder has
`code_idx_map.txt`, a JSON object from the code of each function to its number, `cosqa-retrieval-dev-500.json`
and `cosqa-retrieval-test-500.json`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from automl.base.errors import InputError
from automl.tasks.code_retrieval.data.function import Function
from automl.tasks.code_retrieval.data.python import parse_python
from automl.tasks.code_retrieval.data.source_folder import SourceFunctions

CORPUS = "code_idx_map.txt"
QUERIES = {"validation": "cosqa-retrieval-dev-500.json", "test": "cosqa-retrieval-test-500.json"}


@dataclass(frozen=True, kw_only=True)
class RealQuery:
    """A query that a user typed.

    Attributes:
        text: as typed.
        answer: the index of its function in the corpus.
    """

    text: str
    answer: int


def is_cosqa(folder: Path) -> bool:
    return (folder / CORPUS).is_file()


def read_cosqa(folder: Path) -> tuple[SourceFunctions, Mapping[str, Sequence[RealQuery]]]:
    """Return the functions, and the real queries of the validation and the test split.

    A function that this Python version cannot parse is left out, with its queries, and reported by its
    number.

    Raises InputError for a missing file, a file that is no JSON, and an unknown answer.
    """
    functions: list[Function] = []
    skipped: dict[str, str] = {}
    index: dict[int, int] = {}
    for code, number in _read_json(folder / CORPUS, dict).items():
        name = f"{CORPUS}#{number}"
        try:
            first = next(iter(parse_python(dedent(code), name)), None)
        except (SyntaxError, ValueError) as error:
            skipped[name] = f"no Python: {error}"
            continue
        if first is None:
            skipped[name] = "no function that does something"
            continue
        index[number] = len(functions)
        functions.append(first)
    queries = {
        split: _read_queries(folder / file, index, len(index) + len(skipped))
        for split, file in QUERIES.items()
    }
    return SourceFunctions(functions=functions, skipped=skipped), queries


def _read_queries(file: Path, index: dict[int, int], functions: int) -> list[RealQuery]:
    queries = []
    for entry in _read_json(file, list):
        if not isinstance(entry, dict) or not {"doc", "retrieval_idx"} <= entry.keys():
            raise InputError(f"{file}: each query needs `doc` and `retrieval_idx`; got {str(entry)[:80]}")
        number = entry["retrieval_idx"]
        if not isinstance(number, int) or not 0 <= number < functions:
            raise InputError(f"{file}: {CORPUS} has no function {number!r}, the answer to {entry['doc']!r}")
        if number in index:
            queries.append(RealQuery(text=str(entry["doc"]), answer=index[number]))
    return queries


def _read_json(file: Path, kind: type) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(content, kind):
        raise InputError(f"{file} must hold a JSON {'object' if kind is dict else 'array'}")
    return content
