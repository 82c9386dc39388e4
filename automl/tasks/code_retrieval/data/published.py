"""The published datasets of code: their addresses, and the readers of CodeSearchNet's and CoSQA's files.

CodeSearchNet has one function per line, in any of its languages, with its splits. A folder has `train`,
`valid` and `test` with `*.jsonl.gz` or `*.jsonl` in them, at any depth. Columns may have the names of Hugging
Face's data set `code_search_net`. Source: H. Husain et al., CodeSearchNet Challenge (2019), arXiv 1909.09436.

CoSQA's retrieval task has functions, and queries that people typed with their answers. The folder has
`code_idx_map.txt`, a JSON object from the code of each function to its number, `cosqa-retrieval-dev-500.json`
and `cosqa-retrieval-test-500.json`. Source: J. Huang et al., CoSQA (2021), arXiv 2105.13239, whose CoCLR made
the split.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

from automl.base.errors import InputError
from automl.base.text import open_text, read_text
from automl.data.download import read_datasets
from automl.data.files import is_clutter, name_to_text
from automl.data.splits import SPLITS
from automl.tasks.code_retrieval.data.python import Function, parse_python
from automl.tasks.code_retrieval.data.source_folder import SourceFunctions

CORPUS = "code_idx_map.txt"
QUERIES = {"validation": "cosqa-retrieval-dev-500.json", "test": "cosqa-retrieval-test-500.json"}
DATASETS = read_datasets(__file__)


FOLDERS = {"train": "train", "valid": "validation", "validation": "validation", "test": "test"}
SUFFIXES = (".jsonl", ".jsonl.gz")
COLUMNS = {  # accepted names of each column, CodeSearchNet's first
    "func_name": ("func_name",),
    "code_tokens": ("code_tokens", "func_code_tokens"),
    "code": ("code", "func_code_string", "whole_func_string"),
    "docstring": ("docstring", "func_documentation_string"),
    "path": ("path", "func_path_in_repository"),
    "url": ("url", "func_code_url"),
    "language": ("language",),
}
NEEDED = ("func_name", "docstring")
QUOTES = ("'", '"', "`")

_NAME = re.compile(r"[^\W\d]\w*")
_LINE = re.compile(r"#L([0-9]{1,9})")


def is_codesearchnet(folder: Path) -> bool:
    return next(list_codesearchnet_files(folder), None) is not None


def read_codesearchnet(folder: Path) -> tuple[SourceFunctions, np.ndarray]:
    """Return the functions, and the index of each one's split in SPLITS, int64 `(N,)`.

    The code is taken from `code_tokens`, which has neither comments nor docstrings, or else from `code`
    without both. Training functions that differ from one of another split only in names and constants are
    left out. An invalid line is left out and reported.

    Raises InputError if a split has no file, or a file cannot be read.
    """
    functions: list[Function] = []
    splits: list[int] = []
    skipped: dict[str, str] = {}
    seen: set[bytes] = set()
    for split in reversed(SPLITS):  # Test and validation come first, so that their copies are known.
        files = [file for file, file_split in list_codesearchnet_files(folder) if file_split == split]
        if not files:
            name = next(name for name, folder_split in FOLDERS.items() if folder_split == split)
            raise InputError(f"{folder} has no {' or '.join(f'{name}/*{end}' for end in SUFFIXES)}")
        repeated = 0
        for function in _read_functions(folder, files, skipped):
            if split == "train" and function.key in seen:
                repeated += 1
                continue
            functions.append(function)
            splits.append(SPLITS.index(split))
        if repeated:
            skipped[split] = f"{repeated} near duplicates of functions in validation and test"
        seen = {function.key for function in functions}
    return SourceFunctions(functions=functions, skipped=skipped), np.array(splits, np.int64)


def compute_token_key(tokens: Sequence[str]) -> bytes:
    """Return 32 bytes that are the same for code that differs only in names, numbers and strings.

    Keywords are treated as names, since no list of them fits every language. Code of the same shape numbers
    them in the same order.
    """
    numbers: dict[str, int] = {}

    def shape(token: str) -> str:
        if _NAME.fullmatch(token):
            return f"n{numbers.setdefault(token, len(numbers))}"
        return "0" if token[:1].isdigit() else "''" if token[:1] in QUOTES else token

    return hashlib.sha256("\0".join(map(shape, tokens)).encode()).digest()


def list_codesearchnet_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of functions with their splits, in a fixed order."""
    for name, split in FOLDERS.items():
        for file in sorted((folder / name).rglob("*.jsonl*")):
            if file.name.endswith(SUFFIXES) and not is_clutter(file.name):
                yield file, split


def _read_functions(root: Path, files: Iterable[Path], skipped: dict[str, str]) -> Iterator[Function]:
    for file in files:
        try:
            with open_text(file) as lines:
                for number, line in enumerate(lines, start=1):
                    location = f"{name_to_text(file.relative_to(root))}:{number}"
                    if not line.strip():
                        continue
                    try:
                        yield _parse_entry(json.loads(line), location)
                    except (ValueError, SyntaxError, RecursionError) as error:
                        skipped[location] = f"no function in JSON: {error}"
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}); download it again") from error


def _parse_entry(entry: object, location: str) -> Function:
    if not isinstance(entry, dict):
        raise ValueError("it must be an object")
    values = {
        column: next((entry[name] for name in names if entry.get(name) is not None), None)
        for column, names in COLUMNS.items()
    }
    has_code = values["code_tokens"] is not None or values["code"] is not None
    lacking = [column for column in NEEDED if values[column] is None] + ["code_tokens"] * (not has_code)
    if lacking:
        raise ValueError(f"it needs {', '.join(' or '.join(COLUMNS[column]) for column in lacking)}")
    path, _, _ = str(values["path"] or location).partition("#L")
    line = next(filter(None, (_LINE.search(str(values[column])) for column in ("path", "url"))), None)
    code, key = _get_code(values)
    return Function(
        name=str(values["func_name"]) or "(anonymous)",
        file=path,
        line=int(line[1]) if line else 1,
        code=code,
        docstring=str(values["docstring"] or ""),
        key=key,
    )


def _get_code(values: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the code without comments and docstrings, and its key. Raises ValueError and SyntaxError."""
    tokens = values["code_tokens"]
    if tokens is not None:
        if not isinstance(tokens, list) or not tokens:
            raise ValueError("code_tokens must be a list of tokens")
        tokens = [str(token) for token in tokens]
        return " ".join(tokens), compute_token_key(tokens)
    if (language := str(values["language"] or "python").lower()) != "python":
        raise ValueError(f"code in {language} needs its code_tokens, as only Python is parsed")
    functions = parse_python(dedent(str(values["code"])), "")
    if not functions:
        raise ValueError("its code has no function that does something")
    return functions[0].code, functions[0].key


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
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON ({error})") from error
    if not isinstance(content, kind):
        raise InputError(f"{file} must hold a JSON {'object' if kind is dict else 'array'}")
    return content
