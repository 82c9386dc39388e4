"""The functions of a folder of source files."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attention.errors import InputError
from automl.data.code.function import Function
from automl.data.code.python import python_functions

SUFFIX = ".py"
MOST = 2**20  # bytes; what is larger was not written by hand
OTHERS = frozenset({"node_modules", "site-packages", "__pycache__"})  # folders that are not one's own code


@dataclass(frozen=True, kw_only=True)
class Found:
    """functions: by file and line. skipped: why a file was left out, by its name."""

    functions: list[Function]
    skipped: dict[str, str]


def functions_in(folder: str | Path) -> Found:
    """All functions of the Python files in and below `folder`.

    A file that is too large, is not UTF-8 or cannot be parsed is left out, and named. Hidden folders,
    `site-packages` and `node_modules` are not entered. Raises InputError where there is no such folder, or no
    function in it.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; name one with Python files")
    functions: list[Function] = []
    skipped: dict[str, str] = {}
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        try:
            functions += python_functions(_text(path), name)
        except (OSError, SyntaxError, ValueError) as error:
            skipped[name] = str(error) if isinstance(error, OSError | _Skip) else f"no Python: {error}"
    if not functions:
        files = f"; {len(skipped)} files were left out: {_some(skipped)}" if skipped else ""
        raise InputError(f"{root} has no functions in Python files that do something{files}")
    return Found(functions=functions, skipped=skipped)


def source_files(root: Path) -> Iterator[Path]:
    """In a fixed order, each once."""
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in OTHERS and not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if name.endswith(SUFFIX))


class _Skip(ValueError):
    """A reason in words."""


def _text(path: Path) -> str:
    size = path.stat().st_size
    if size > MOST:
        raise _Skip(f"of {size / 2**20:.1f} MB; files above {MOST // 2**20} MB are not read")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Skip(f"not UTF-8 at byte {error.start}") from error


def _some(skipped: dict[str, str]) -> str:
    shown = [f"{name} ({why})" for name, why in list(skipped.items())[:3]]
    return ", ".join(shown) + (", ..." if len(skipped) > 3 else "")
