"""Read the functions of a folder of Python files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.base.text import NotUtf8, read_text
from automl.base.units import format_size, pluralize
from automl.data.files import OTHERS, is_clutter, name_to_text
from automl.data.remote import local_copy
from automl.data.tally import join_examples
from automl.tasks.code_retrieval.data.python import Function, parse_python

SUFFIX = ".py"
MAX_BYTES = 1_000_000  # of a file; larger ones were not written by hand


@dataclass(frozen=True, kw_only=True)
class SourceFunctions:
    """Functions of a folder.

    Attributes:
        functions: by file and line.
        skipped: why a file was left out, by its name.
    """

    functions: list[Function]
    skipped: dict[str, str]


def read_source_folder(folder: str | Path) -> SourceFunctions:
    """Read all functions of the Python files in and below `folder`.

    A file that is too large, not UTF-8 or cannot be parsed is left out and reported. Hidden folders,
    `site-packages` and `node_modules` are not entered.

    Raises InputError if there is no such folder, or no function in it.
    """
    root = local_copy(folder)
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; pass a folder with Python files")
    functions: list[Function] = []
    skipped: dict[str, str] = {}
    for path in list_source_files(root):
        name = name_to_text(path.relative_to(root))
        result = read_source_file(path, name)
        if isinstance(result, str):
            skipped[name] = result
        else:
            functions += result
    if not functions:
        files = (
            f"; {pluralize(len(skipped), 'files were left out')}: {join_reasons(skipped)}" if skipped else ""
        )
        raise InputError(f"{root} has no functions that do something in Python files{files}")
    return SourceFunctions(functions=functions, skipped=skipped)


def read_source_file(path: Path, name: str) -> list[Function] | str:
    """Return the functions of a file, with `name` as their file; or the reason why it is left out."""
    try:
        size = path.stat().st_size
        if not path.is_file():  # Reading from a pipe would wait forever.
            return "not a regular file"
        if size > MAX_BYTES:
            return f"{format_size(size)}; files above {format_size(MAX_BYTES)} are not read"
        return parse_python(read_text(path), name)
    except OSError as error:
        return str(error)
    except NotUtf8 as error:
        return str(error).partition(": it is ")[2]
    except (SyntaxError, ValueError) as error:
        return f"no Python: {error}"


def list_source_files(root: Path) -> Iterator[Path]:
    """Yield the Python files of a folder in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in OTHERS and not name.startswith("."))
        yield from (
            Path(folder, name) for name in sorted(files) if name.endswith(SUFFIX) and not is_clutter(name)
        )


def join_reasons(skipped: Mapping[str, str]) -> str:
    """Return the first few files with their reasons in a line."""
    return join_examples([f"{name} ({why})" for name, why in skipped.items()])
