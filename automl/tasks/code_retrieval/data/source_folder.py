"""Read the functions of a folder of source files."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.base.text import NotUtf8, read_text
from automl.base.units import pluralize
from automl.data.files import OTHERS, is_clutter, name_to_text
from automl.data.tally import join_examples
from automl.tasks.code_retrieval.data.other_languages import BY_SUFFIX, LANGUAGES, parse_functions
from automl.tasks.code_retrieval.data.python import Function, parse_python

PYTHON = ".py"
SUFFIXES = (PYTHON, *BY_SUFFIX)
NAMES = ", ".join(["Python", *(language.name for language in LANGUAGES)])
MAX_BYTES = 2**20  # of a file; larger ones were not written by hand
VENDORED = ("modules.txt", "autoload.php", "bundle")  # files of Go, Composer and Bundler in `vendor`


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
    """Read all functions of the files in and below `folder` whose suffixes are in SUFFIXES.

    A file that is too large, minified, not UTF-8 or cannot be parsed is left out and reported. Hidden
    folders, `site-packages`, `node_modules` and a `vendor` of downloaded packages are not entered.

    Raises InputError if there is no such folder, or no function in it.
    """
    root = resolve_code_folder(folder)
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
        raise no_functions_error(root, skipped)
    return SourceFunctions(functions=functions, skipped=skipped)


def resolve_code_folder(folder: str | Path) -> Path:
    """Return the path of a folder. Raises InputError if it does not exist."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; pass a folder with source files")
    return root


def read_source_file(path: Path, name: str) -> list[Function] | str:
    """Return the functions of a file, with `name` as their file; or the reason why it is left out."""
    language = BY_SUFFIX.get(path.suffix)  # None for Python
    try:
        size = path.stat().st_size
        if not path.is_file():  # Reading from a pipe would wait forever.
            return "not a regular file"
        if size > MAX_BYTES:
            return f"{size / 2**20:.1f} MB; files above {MAX_BYTES // 2**20} MB are not read"
        text = read_text(path)
        return parse_python(text, name) if language is None else parse_functions(text, name, language)
    except OSError as error:
        return str(error)
    except NotUtf8 as error:
        return str(error).partition(": it is ")[2]
    except InputError:  # A package is missing.
        raise
    except (SyntaxError, ValueError) as error:
        return f"no {'Python' if language is None else language.name}: {error}"


def no_functions_error(root: Path, skipped: Mapping[str, str]) -> InputError:
    """Return an error about a folder without functions."""
    files = f"; {pluralize(len(skipped), 'files were left out')}: {join_reasons(skipped)}" if skipped else ""
    return InputError(f"{root} has no functions that do something in files of {NAMES}{files}")


def list_source_files(root: Path) -> Iterator[Path]:
    """Yield the source files of a folder in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if _is_own_code(Path(folder, name)))
        yield from (
            Path(folder, name) for name in sorted(files) if name.endswith(SUFFIXES) and not is_clutter(name)
        )


def _is_own_code(folder: Path) -> bool:
    """Return whether a folder may contain the user's own code."""
    if folder.name == "vendor" and any((folder / mark).exists() for mark in VENDORED):
        return False
    return folder.name not in OTHERS and not folder.name.startswith(".")


def join_reasons(skipped: Mapping[str, str]) -> str:
    """Return the first few files with their reasons in a line."""
    return join_examples([f"{name} ({why})" for name, why in skipped.items()])
