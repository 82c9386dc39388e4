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
from functools import cache, lru_cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from attention import InputError, unknown
from backbones.libraries import LIBRARIES

OWN = "own_"  # begins the names of modules that are loaded from a file
EVERYWHERE = ("attention", "automl", "backbones", "cluster", "search")  # on every machine that runs us

Code = Mapping[str, bytes]  # the files of a user-defined object, by their paths where it was loaded

_received: dict[Path, Path] = {}  # files of another machine: the path there, and the copy here
_held: dict[Path, Code] = {}  # the code of a file as it was when a search began
_loaded: dict[Path, tuple[Mapping[Path, bytes], Any]] = {}  # by its file: what it was made of, the module
_imported: dict[str, Any] = {}  # modules that were loaded by name
_known: dict[str, str] = {}  # the names of code of one's own, by its hash


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


def is_user_defined(name: str) -> bool:
    """Return whether `name` names user-defined code: `file.py:name` or `package.module:name`."""
    first, colon, _ = name.partition(":")
    return bool(colon) and first not in LIBRARIES


def loaded_object(name: str) -> Any:
    """Return what `load_object` has loaded by this name, or None if it has not, or its code has changed.

    Runs nothing.
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name.endswith(".py"):
        return getattr(_imported.get(module_name), attribute, None)
    file = Path(module_name)
    made_of, module = _loaded.get(_received.get(file, file), ({}, None))
    return getattr(module, attribute, None) if _is_unchanged(made_of) else None


def absolute(name: str) -> str:
    """`file.py:name` with the whole path of the file, so that other processes find it."""
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        return name
    try:
        return f"{Path(file).expanduser().resolve()}:{attribute}"
    except (OSError, RuntimeError, ValueError):  # no path can be so; loading it says why
        return name


def load_file(path: str) -> Any:
    """The module in a file, which is run once as long as it and what it imports beside it do not change."""
    file = _file_of(path)[1]
    if file in _loaded:  # a search asks for its model thousands of times
        made_of, module = _loaded[file]
        if _is_unchanged(made_of):
            return module
    made_of = {part: part.read_bytes() for part in _with_imports(file)}
    _loaded[file] = made_of, _module_of(file, made_of)
    return _loaded[file][1]


def _file_of(path: str) -> tuple[Path, Path]:
    """A file by its whole path where it was named, and where it lies here. Raises InputError for none."""
    try:
        named = Path(path).expanduser().resolve()
        here = _received.get(named, named)
        if here.is_file():
            return named, here
    except (OSError, RuntimeError, ValueError):  # a name too long, an unknown home folder, a null byte
        pass
    raise InputError(f"there is no file {path} to read it from")


def _is_unchanged(made_of: Mapping[Path, bytes]) -> bool:
    return all(part.is_file() and part.read_bytes() == content for part, content in made_of.items())


def _module_of(file: Path, made_of: Mapping[Path, bytes]) -> Any:
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) == str(file) and not name.startswith(OWN):
            return module  # whose classes would otherwise be there twice, and not be equal
    return _run(file, digest({str(part): content for part, content in made_of.items()}))


@lru_cache(maxsize=32)
def _run(file: Path, content: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{OWN}{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _beside.look_in(str(file.parent))
    spec.loader.exec_module(module)
    return module


class _Beside(MetaPathFinder):
    """Finds what lies beside the files that were loaded, those of the last one first.

    It is asked last: what lies beside a file hides nothing that is installed.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.found: set[str] = set()

    def look_in(self, folder: str) -> None:
        """Before a file of the folder is run, which is not given what lies beside another file."""
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        self.folders = [folder, *(other for other in self.folders if other != folder)]
        for name in list(sys.modules):
            if name.partition(".")[0] in self.found:
                del sys.modules[name]
        self.found.clear()
        importlib.invalidate_caches()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, self.folders, target) if path is None else None
        if spec is not None:
            self.found.add(name)
        return spec


_beside = _Beside()


def load_module(name: str) -> Any:
    """A user's module, which may be in the current folder."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    _imported[name] = importlib.import_module(name)
    return _imported[name]


def code(name: str) -> Code:
    """The file of `file.py:name` and what it imports that lies beside it or below; empty for other names.

    Found in its import statements, those inside of functions among them. What is imported by a name that is
    made up at run time is not found. Raises InputError for a file that is missing or no Python.
    """
    file, colon, _ = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        return {}
    if (held := Path(absolute(name).rpartition(":")[0])) in _held:
        return _held[held]
    named, here = _file_of(file)
    return {
        str(named.parent / path.relative_to(here.parent)): path.read_bytes()
        for path in sorted(_with_imports(here))
    }


def hold(name: str) -> None:
    """From now on `code` says what the files are now, whatever becomes of them: a search has one model."""
    named = Path(absolute(name).rpartition(":")[0])
    _held.pop(named, None)
    if files := code(name):
        _held[named] = files


def identity(name: str) -> str:
    """A hash of the code behind a name: of its files, or of a module's and those beside it; empty for others.

    Raises InputError where there is no such file.
    """
    if files := code(name):
        found = digest(files)
        _known[found] = name
        return found
    module, colon, _ = name.rpartition(":")
    return _module_identity(module) if colon and module not in LIBRARIES else ""


@cache
def _module_identity(module: str) -> str:
    try:
        load_module(module)
        spec = importlib.util.find_spec(module)
    except Exception:  # whatever it raises, `load_object` tells
        return ""
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return ""
    return digest({str(path): path.read_bytes() for path in _with_imports(Path(spec.origin))})


def here(name: str, found: str) -> str:
    """`name`, or the name of the same code here where the file of another machine or folder is not there."""
    file, colon, attribute = name.rpartition(":")
    same = _known.get(found)
    if same is None or not colon or same.rpartition(":")[2] != attribute:
        return name
    try:
        return name if Path(file) in _received or Path(file).is_file() else same
    except (OSError, ValueError):  # no path can be so
        return same


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
    for path, content in files.items():
        copy = folder / Path(path).relative_to(Path(path).anchor)
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
        statements = _statements(path.read_bytes())
    except SyntaxError as error:
        raise InputError(f"{path.name}, line {error.lineno}, is no Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, nested too deeply
        raise InputError(f"{path.name} is no Python: {error or type(error).__name__}") from None
    for level, names in statements:
        start = path.parents[min(level, len(path.parents)) - 1] if level else top
        if start.is_relative_to(top):
            yield from _files(start, names, relative=bool(level))


@lru_cache(maxsize=256)
def _statements(content: bytes) -> Sequence[tuple[int, Sequence[str]]]:
    """What a file imports: how many dots stand before each name, and its parts. Raises SyntaxError."""
    found: list[tuple[int, Sequence[str]]] = []
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = node.module.split(".") if node.module else []
            found += [(node.level, [*names, alias.name]) for alias in node.names]
    return found


def _files(folder: Path, names: Sequence[str], *, relative: bool = False) -> Iterator[Path]:
    """The modules that importing `a.b.c` runs, as far as they lie in `folder`: of a, a.b and a.b.c."""
    if not relative and names[0] in EVERYWHERE:
        return
    for name in names:
        folder /= name
        yield from (p for p in (folder.with_suffix(".py"), folder / "__init__.py") if p.is_file())
