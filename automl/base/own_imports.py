"""The imports of a user's files: which files one runs, and the finder of modules beside it."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from automl.base.errors import OWN_PACKAGES, InputError


def with_imports(file: Path) -> set[Path]:
    """Return `file` and all files that it imports, directly or not, from its folder or below."""
    files, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.add(path)
            waiting += _imports(path, file.parent)
    return files


def _imports(path: Path, top: Path) -> Iterator[Path]:
    try:
        statements = _statements(path.read_bytes())
    except SyntaxError as error:
        raise InputError(f"{path.name}, line {error.lineno}, is no Python: {error.msg}") from None
    # Null bytes, or code that is nested too deeply.
    except (ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"{path.name} is no Python: {error or type(error).__name__}") from None
    for level, names in statements:
        start = path.parents[min(level, len(path.parents)) - 1] if level else top
        if start.is_relative_to(top):
            yield from _files(start, names, relative=bool(level))


@lru_cache(maxsize=256)
def _statements(content: bytes) -> Sequence[tuple[int, Sequence[str]]]:
    """Return the imports of a file: the number of leading dots and the parts of each name."""
    # Raises `SyntaxError`.
    imports: list[tuple[int, Sequence[str]]] = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = node.module.split(".") if node.module else []
            imports += [(node.level, [*names, alias.name]) for alias in node.names]
    return imports


def _files(folder: Path, names: Sequence[str], *, relative: bool = False) -> Iterator[Path]:
    """Return the files in `folder` that importing `a.b.c` runs: of a, a.b and a.b.c."""
    if not relative and names[0] in OWN_PACKAGES:
        return
    for name in names:
        folder /= name
        yield from (p for p in (folder.with_suffix(".py"), folder / "__init__.py") if p.is_file())


def check_names(file: Path) -> None:
    """Raise InputError if a file would import an installed package instead of the file beside it."""
    for path in with_imports(file):
        for level, (top, *_) in _statements(path.read_bytes()):
            near = next(_files(file.parent, [top], relative=True), None)
            if not level and near not in (None, path):
                check_first(file.parent, top, f"{path.name} imports {top!r}, which is not {{}} beside it")


def check_first(folder: Path, top: str, message: str) -> None:
    """Raise InputError if Python finds another module `top` than that in `folder`.

    `message` is its beginning, with `{}` for the name of the file.
    """
    near = next(_files(folder, [top], relative=True), None)
    origin = find_origin(top)
    if near is not None and origin and Path(origin).resolve() != near.resolve():
        raise InputError(f"{message.format(near.name)}: Python finds {origin} first. Rename {near.name}")


def find_origin(module: str) -> str | None:
    """Return the file or folder in which Python finds a module. None if it finds none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a program has put it into `sys.modules`
        return None
    return None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)


class _Beside(MetaPathFinder):
    """Import finder for files beside the loaded files. The folder of the last loaded file comes first.

    It is the last finder, so that such files never hide an installed package.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.imported: set[str] = set()

    def look_in(self, folder: str) -> None:
        """Search in `folder` first, and forget modules found beside other files."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        self.folders = [folder, *(other for other in self.folders if other != folder)]
        for name in list(sys.modules):
            if name.partition(".")[0] in self.imported:
                del sys.modules[name]
        self.imported.clear()
        importlib.invalidate_caches()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, self.folders, target) if path is None else None
        if spec is not None:
            self.imported.add(name)
        return spec


beside = _Beside()
