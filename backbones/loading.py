"""Loads user-defined objects by name: `file.py:name` or `package.module:name`.

A file may import what lies beside it. It is sent to other machines as it is here (`code`, `receive`), with
what it has imported, so that they need not see the same disk.
"""

import ast
import atexit
import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from attention import InputError, unknown

OWN = "own_"  # begins the names of modules that are loaded from a file
EVERYWHERE = ("attention", "automl", "backbones", "cluster", "search")  # on every machine that runs us

Code = Mapping[str, bytes]  # the files of a user-defined object, by their paths where it was loaded

_received: dict[Path, Path] = {}  # files of another machine: the path there, and the copy here


def load_object(what: str, kind: str, name: str, known: Iterable[str]) -> Any:
    """What is called `name`, where that is none of the `known` names of our own.

    what, kind: a space that is a function, a task that is a class, for messages.
    Raises InputError when there is none, or it cannot be imported.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon:
        raise InputError(f"{unknown(what, name, known)} Or name your own as file.py:{kind}.")
    try:
        module = load_file(module_name) if module_name.endswith(".py") else load_module(module_name)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{what} {name!r}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown(f"{kind} in {module_name}", attribute, there)
    return found


def absolute(name: str) -> str:
    """`file.py:name` with the whole path of the file, so that other processes find it."""
    file, colon, attribute = name.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{attribute}" if colon and file.endswith(".py") else name


def load_file(path: str) -> Any:
    """The module in a file, which is run once as long as it stays as it is."""
    named = Path(path).expanduser().resolve()
    file = _received.get(named, named)
    if not file.is_file():
        raise InputError(f"there is no file {path} to read it from")
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(file) and not name.startswith(OWN):
            return module  # whose classes would otherwise be there twice, and not be equal
    status = file.stat()
    return _run(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _run(file: Path, changed: int, size: int) -> Any:
    spec = importlib.util.spec_from_file_location(f"{OWN}{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(file.parent) not in _beside.folders:
        _beside.folders.append(str(file.parent))
    if _beside not in sys.meta_path:
        sys.meta_path.append(_beside)  # last: what lies beside a file hides nothing that is installed
    spec.loader.exec_module(module)
    return module


class _Beside(MetaPathFinder):
    """Finds what lies beside the files that were loaded."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, self.folders, target) if path is None else None


_beside = _Beside()


def load_module(name: str) -> Any:
    """A user's module, which may be in the current folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def code(name: str) -> Code:
    """The file of `file.py:name` and what it imports that lies beside it or below; empty for other names.

    Found in its import statements, those inside of functions among them. What is imported by a name that is
    made up at run time is not found. Raises InputError for a file that is missing or no Python.
    """
    file, colon, _ = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        return {}
    named = Path(file).expanduser().resolve()
    here = _received.get(named, named)
    if not here.is_file():
        raise InputError(f"there is no file {file} to read it from")
    return {
        str(named.parent / path.relative_to(here.parent)): path.read_bytes()
        for path in sorted(_with_imports(here))
    }


def digest(files: Code) -> str:
    """Of a user-defined object's files and their names; empty for none."""
    parts = [f"{Path(path).name} {sha256(content).hexdigest()}" for path, content in sorted(files.items())]
    return sha256("\n".join(parts).encode()).hexdigest()[:16] if parts else ""


def receive(files: Code) -> None:
    """Makes `load_file` find files of another machine by their paths there.

    Files that lie here as they lie there are used themselves.
    """
    if all(_is_here(Path(path), content) for path, content in files.items()):
        return
    folder = Path(tempfile.mkdtemp(prefix="automl-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    top = min((Path(path).parent for path in files), key=lambda parent: len(parent.parts))
    for path, content in files.items():
        copy = folder / Path(path).relative_to(top)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        _received[Path(path)] = copy


def _is_here(path: Path, content: bytes) -> bool:
    there = _received.get(path, path)
    return there.is_file() and there.read_bytes() == content


def _with_imports(file: Path) -> set[Path]:
    """`file` and what it imports, and so on, as far as that lies in its folder or below."""
    found, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(path, file.parent)
    return found


def _imports(path: Path, top: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise InputError(f"{path.name}, line {error.lineno}, is no Python: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(top, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = top if not node.level else path.parents[node.level - 1]
            names = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files(start, [*names, alias.name])


def _files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """The modules that importing `a.b.c` runs, as far as they lie in `folder`: of a, a.b and a.b.c."""
    if not names or names[0] in EVERYWHERE:
        return
    for name in names:
        folder /= name
        yield from (p for p in (folder.with_suffix(".py"), folder / "__init__.py") if p.is_file())
