"""Loads user-defined objects by name: `file.py:name` or `package.module:name`.

A file may import files beside it. It is sent to other machines with the files that it imports (`code`,
`receive`), so that they need not share a disk.
"""

import atexit
import importlib
import importlib.util
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache, wraps
from hashlib import sha256
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, ParamSpec, TypeVar

import cloudpickle

from automl.base import live_objects
from automl.base.errors import InputError, describe_error, unknown
from automl.base.own_imports import beside, check_first, check_names, with_imports

P = ParamSpec("P")
R = TypeVar("R")
GUARD = 'if __name__ == "__main__":'
OWN = "own_"  # Prefix of the names of modules that are loaded from a file.

UNPACKED = "working_dir_files"  # the parent of the folders into which Ray unpacks jobs

# Prefixes of names in libraries, such as `timm:convnext_atto`, which are no files or modules of the user.
LIBRARIES = ("torchvision", "timm", "smp", "hf")

# Files of a user-defined object, by their paths on the machine where it was loaded.
Code = Mapping[str, bytes]

_received: dict[Path, Path] = {}  # Copies of files from another machine, by their path there.
_held: dict[str, Code] = {}  # Code of a file, or of a function of a notebook, at the start of a search.
# Contents of the files that a module was loaded from, and the module, by its file.
_loaded: dict[Path, tuple[Mapping[Path, bytes], Any]] = {}
_importing_files: list[Path] = []  # Files that are being imported, the innermost last.
_current: list[str] = []  # The folder that `load_module` has put on the path.
_imported: dict[str, Any] = {}  # Modules loaded by name.
_known: dict[str, str] = {}  # Names of user-defined code, by its hash.


def load_object(what: str, kind: str, name: str, known: Iterable[str]) -> Any:
    """Load the user-defined object called `name`: `file.py:name` or `package.module:name`.

    Messages call the object `what`, such as `space`, and say that it is a `kind`, such as `function`. `known`
    are the names of the built-in ones. Raises InputError if there is no such object, or it cannot be
    imported.
    """
    module_name, colon, attribute = name.rpartition(":")
    if not colon:
        raise InputError(f"{unknown(what, name, known)} Or name your own as file.py:{kind}.")
    if live_objects.is_live(name) and (live := live_objects.find_live(name)) is not None:
        return live
    try:
        module = load_file(module_name) if module_name.endswith(".py") else load_module(module_name)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{what} {name!r}: {module_name} cannot be imported: {describe_error(error)}"
            f"{_advice(error, name)}"
        ) from error
    loaded = getattr(module, attribute, None)
    if not callable(loaded):
        choices = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise unknown(f"{kind} in {module_name}", attribute, choices)
    return loaded


def _advice(error: BaseException, name: str) -> str:
    """Return what to do about an error of an import."""
    file, _, attribute = name.rpartition(":")
    if isinstance(error, SystemExit):
        return f". Put what runs the program below `{GUARD}`"
    if isinstance(error, ImportError) and "relative import" in str(error) and file.endswith(".py"):
        path = Path(file).resolve()
        package = f"{path.parent.name}.{path.stem}:{attribute}"
        return f". Name a file with relative imports by its package: {package} in {path.parents[1]}"
    return ""


def is_user_defined(name: str) -> bool:
    """Return whether `name` names user-defined code: `file.py:name` or `package.module:name`."""
    first, colon, _ = name.partition(":")
    return bool(colon) and first not in LIBRARIES


def short_name(name: str) -> str:
    """Return `name` without the folder of its file: `mine.py:Gate`, `hf:folder`."""
    if name.startswith("hf:/"):
        return f"hf:{name.rpartition('/')[2]}"
    return name.rpartition("/")[2] if is_user_defined(name) else name


def get_loaded_object(name: str) -> Any:
    """Return the object that `load_object` has loaded by this name. Runs no code.

    Return None if it has not been loaded, or if its code has changed.
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name.endswith(".py"):
        return getattr(_imported.get(module_name), attribute, None)
    file = Path(module_name).resolve()
    contents, module = _loaded.get(_received.get(file, file), ({}, None))
    return getattr(module, attribute, None) if _is_unchanged(contents) else None


def make_absolute(name: str) -> str:
    """Return `file.py:name` or `hf:FOLDER` with an absolute path, so that other processes find it."""
    file, colon, attribute = name.rpartition(":")
    if not colon or not attribute or not (file.endswith(".py") or file == "hf"):
        return name
    try:
        if file == "hf":
            folder = Path(attribute).expanduser()
            return f"hf:{folder.resolve()}" if folder.is_dir() else name
        path = Path(file).expanduser().resolve()
        # The folder of a job is another one when the job is submitted again.
        return name if UNPACKED in path.parts else f"{path}:{attribute}"
    except (OSError, RuntimeError, ValueError):  # The path is invalid. Loading it reports the reason.
        return name


def load_file(name: str) -> Any:
    """Return the module in a file. It runs again only if the file or its imports beside it have changed."""
    file = _file_of(name)[1]
    if file in _loaded:  # A search loads its model thousands of times.
        contents, module = _loaded[file]
        if _is_unchanged(contents):
            return module
    contents = {path: path.read_bytes() for path in with_imports(file)}
    known = [(n, m) for n, m in [*sys.modules.items()] if getattr(m, "__file__", None) == str(file)]
    # Loading it again would create its classes twice, and these would not be equal.
    module = next((module for name, module in known if not name.startswith(OWN)), None)
    if module is None:
        module = _run(file, hash_files({str(path): content for path, content in contents.items()}))
    _loaded[file] = contents, module
    return module


def _file_of(path: str) -> tuple[Path, Path]:
    """Return the absolute path of a file where it was named, and its path on this machine."""
    # Raises `InputError` if there is no file.
    try:
        original = Path(path).expanduser().resolve()
        local = _received.get(original, original)
        if local.is_file():
            return original, local
    # A name that is too long, an unknown home folder, or a null byte.
    except (OSError, RuntimeError, ValueError):
        pass
    raise InputError(f"there is no file {path} to read it from")


def _is_unchanged(contents: Mapping[Path, bytes]) -> bool:
    return all(path.is_file() and path.read_bytes() == content for path, content in contents.items())


@lru_cache(maxsize=32)
def _run(file: Path, content: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{OWN}{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    beside.look_in(str(file.parent))
    check_names(file)
    with _importing(file):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _importing(file: Path) -> Iterator[None]:
    """Hide the arguments of this program from the file that is imported in the block."""
    arguments, refuse = sys.argv, ArgumentParser.error
    sys.argv = [str(file)]
    ArgumentParser.error = _refuse_arguments  # type: ignore[assignment, method-assign]
    _importing_files.append(file)
    try:
        yield
    finally:
        sys.argv, ArgumentParser.error = arguments, refuse  # type: ignore[method-assign]
        _importing_files.pop()


def _refuse_arguments(parser: ArgumentParser, message: str) -> NoReturn:
    raise SystemExit(f"it reads arguments of the command line, and has none here: {message}")


def outside_imports(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that raises InputError while a user's file is imported.

    A script that starts a search would start it again in each process that imports the script.
    """

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        if _importing_files:
            raise InputError(
                f"{_importing_files[-1]} calls automl.{function.__qualname__} when it is imported, and each "
                f"process of a trial imports it; put this call below `{GUARD}`"
            )
        return function(*args, **options)

    return run


def load_module(name: str) -> Any:
    """Import a user's module, which may be in the current folder. Files there hide no installed package."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path[:] = [*(folder for folder in sys.path if folder not in _current), here]
        _current[:] = [here]
    check_first(Path.cwd(), name.partition(".")[0], f"the module {name!r} is not of {{}} in this folder")
    _imported[name] = importlib.import_module(name)
    return _imported[name]


def code(name: str) -> Code:
    """Return the file of `file.py:name` and the files that it imports from its folder or below.

    A function of a notebook is packed. The result is empty for other names. Imports are read from import
    statements, also inside functions. Names that are computed at run time are missed. Raises `InputError` if
    a file is missing or is not Python.
    """
    file, colon, _ = name.rpartition(":")
    if (key := _file_or_live(name)) in _held:
        return _held[key]
    if live_objects.is_live(name):
        return {name: live_objects.pack(name)}
    if not colon or not file.endswith(".py"):
        return {}
    original, local = _file_of(file)
    return {
        str(original.parent / path.relative_to(local.parent)): path.read_bytes()
        for path in sorted(with_imports(local))
    }


def freeze_code(name: str) -> None:
    """Freeze the result of `code` for this name, so that a search has one model even if files change."""
    _held.pop(_file_or_live(name), None)
    if files := code(name):
        _held[_file_or_live(name)] = files


def _file_or_live(name: str) -> str:
    return name if live_objects.is_live(name) else make_absolute(name).rpartition(":")[0]


def hash_code(name: str) -> str:
    """Return a hash of the code behind a name: of a file or a module and its imports. Empty for other names.

    Raises `InputError` if there is no such file.
    """
    if live_objects.is_live(name):
        return live_objects.hash_live(name)
    if files := code(name):
        code_hash = hash_files(files)
        _known[code_hash] = name
        return code_hash
    module, colon, _ = name.rpartition(":")
    return hash_files(_module_files(module)) if colon and module not in LIBRARIES else ""


@cache
def _module_files(module: str) -> Code:
    try:
        load_module(module)
        spec = importlib.util.find_spec(module)
    except Exception:  # `load_object` reports the error.
        return {}
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return {}
    return {str(path): path.read_bytes() for path in with_imports(Path(spec.origin))}


def find_local_name(name: str, code_hash: str) -> str:
    """Return `name`, or the name of the same code on this machine if the file does not exist here."""
    file, colon, attribute = name.rpartition(":")
    same = _known.get(code_hash)
    if same is None or not colon or same.rpartition(":")[2] != attribute:
        return name
    try:
        return name if Path(file) in _received or Path(file).is_file() else same
    except (OSError, ValueError):  # The path is invalid.
        return same


def hash_files(files: Code) -> str:
    """Return a hash of a user-defined object's files and their names. Empty for no files."""
    lines = [f"{Path(path).name} {sha256(content).hexdigest()}" for path, content in sorted(files.items())]
    return sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


def receive(files: Code) -> None:
    """Make `load_file` find files of another machine by their paths there.

    If the same files exist at these paths here, they are used directly.
    """
    for name in filter(live_objects.is_live, files):
        live_objects.unpack(name, files[name])
    files = {path: content for path, content in files.items() if not live_objects.is_live(path)}
    paths = map(Path, files)
    if _is_unchanged(dict(zip((_received.get(path, path) for path in paths), files.values(), strict=True))):
        return
    folder = Path(tempfile.mkdtemp(prefix="automl-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, content in files.items():
        copy = folder / Path(path).relative_to(Path(path).anchor)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
        _received[Path(path)] = copy


def send_own_objects() -> None:
    """Make pickles for other processes name the file of a class or function of the user.

    A process that user-defined code spawns, as a `DataLoader` does, imports these by their module. It cannot
    find a module that was read from a file, or a function of a notebook that this process has received.
    """
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign, assignment]


def _reduce(pickler: ForkingPickler, value: Any) -> Any:
    if not isinstance(value, type | FunctionType) or "<" in value.__qualname__:
        return NotImplemented
    module, name = value.__module__, value.__qualname__
    if module == live_objects.MAIN and not hasattr(sys.modules[module], name.partition(".")[0]):
        return cloudpickle.loads, (cloudpickle.dumps(value),)
    if module.startswith(OWN):
        return _find, (sys.modules[module].__file__, None, [], name)
    if module.partition(".")[0] in beside.imported:
        return _find, (None, module, beside.folders, name)
    return NotImplemented


def _find(file: str | None, module: str, folders: list[str], name: str) -> Any:
    """Return the object `name` of a file, or of a module beside the files in `folders`."""
    if beside.folders[: len(folders)] != folders:
        for folder in reversed(folders):
            beside.look_in(folder)
    return attrgetter(name)(load_file(file) if file else importlib.import_module(module))
