"""Score what commands write with an evaluator that they do not change, and check files before and after runs.

No permission keeps a process from files of its own user. So this module compares contents: of the protected
files before and after each run with those at the beginning, of a run's output around its evaluation, and of
the evaluator's copy. What a run reads is not seen.
"""

import hashlib
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
from automl.storage.cache_folder import once
from automl.tasks.command.config import OUT, SEED, Guard
from automl.trials.job import CommandFailed

NO_CONTENT = ("__pycache__", ".git")  # folders that are not compared or copied
# Names of files and folders that runs may write, and suffixes that count as checkpoints.
USUAL = frozenset((
    *NO_CONTENT, ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    "wandb", "mlruns", "mlartifacts", "mlflow.db", "mlflow.db-journal",
))  # fmt: skip
CHECKPOINTS = frozenset((
    ".pt", ".pth", ".pt2", ".ckpt", ".bin", ".safetensors", ".pkl", ".pickle", ".joblib", ".npy", ".npz",
    ".h5", ".hdf5", ".keras", ".onnx", ".msgpack", ".tar", ".zip",
))  # fmt: skip
COPIES = "evaluators"  # in the cache
REREAD = 2**28  # bytes of a path that each check reads. Other files are read if their times or size differ
COPIED = 2**28  # larger paths are linked into the evaluator's copy [bytes]
SMALL = 2**20  # larger files count as checkpoints [bytes]
WATCHED, NAMED = 20_000, 5  # largest number of files in a folder that is watched, and of names in a message
UNREADABLE = ("no file", "not readable")  # in place of a digest
READ_ONLY = 0o222  # the bits of a file's mode that allow writing

Contents = dict[str, tuple[str, int]]  # digest of each file, and the time of its last change, by name
_known: dict[str, tuple[tuple[int, ...], str]] = {}  # digests of files beyond `REREAD`, with their times


def read_contents(path: str | Path) -> Contents:
    """Return the digest of each file of a path and the time of its last change, by its name below it."""
    files: Contents = {}
    size = 0
    for name, file, info in _walk(str(path)):
        size += info.st_size
        key = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        known = _known.get(file)
        digest = known[1] if size > REREAD and known and known[0] == key else _digest(file, info.st_mode)
        if size > REREAD:
            _known[file] = key, digest
        files[name] = digest, info.st_ctime_ns
    return files


def _walk(
    path: str, name: str = "", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and state of each file. Links are followed, but not to a folder above them."""
    try:
        info = os.stat(path)
        names = sorted(os.listdir(path)) if stat.S_ISDIR(info.st_mode) else None
    except PermissionError:
        names, info = None, os.lstat(path)
    except OSError:
        return  # it does not exist
    if names is None:
        yield name or ".", path, info
    elif (here := (info.st_dev, info.st_ino)) not in above:
        for inner in names:
            if inner not in NO_CONTENT:
                yield from _walk(f"{path}/{inner}", f"{name}/{inner}".lstrip("/"), (*above, here))


def _digest(file: str, mode: int) -> str:
    if not stat.S_ISREG(mode):  # opening a pipe would wait
        return UNREADABLE[0]
    try:
        with open(file, "rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:
        return UNREADABLE[1]


def combine(digests: Mapping[str, str]) -> str:
    """Return one digest of several, each with its name."""
    lines = (f"{name}\0{digests[name]}\n" for name in sorted(digests))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def digest_of(contents: Contents) -> str:
    """Return one digest of the contents of a path."""
    return combine({name: digest for name, (digest, _) in contents.items()})


def named_paths(evaluate: str) -> list[str]:
    """Return the paths in the command of an evaluator: its program, if it is a path, and its arguments."""
    words = [_split(word)[1] for word in shlex.split(evaluate)]
    return [word for i, word in enumerate(words) if (i > 0 or os.sep in word) and _is_path(word)]


def _split(word: str) -> tuple[str, str]:
    """Split a word after the sign of `--option=value`."""
    option, equals, value = word.partition("=")
    return (option + equals, value) if equals else ("", word)


def _is_path(word: str) -> bool:
    return os.path.exists(word) and OUT not in word and SEED not in word


def make_guard(
    evaluate: str,
    protect: Sequence[str],
    ignored: Iterable[str],
    *,
    folder: Path,
    tracked: Container[str] | None,
    copies: Path,
) -> Guard:
    """Return what is checked around each run, with a clean copy of the evaluator in a folder in `copies`.

    `folder` is where the baseline runs: the current folder, or that of its commit, which has the paths
    `tracked`, as seen from the current folder. Others, such as data that git ignores, are not copied for each
    commit.

    Raises InputError if a path does not exist or is not readable, or the evaluator has no file.
    """
    ignored = [_name(path) for path in ignored]
    named = {path: _protect(path, folder, tracked) for path in [*named_paths(evaluate), *protect]}
    digests = {name: digest_of(read_contents(source)) for name, source in named.values()}
    if not evaluate:
        return Guard(protect=digests, ignored=ignored)
    if not digests:
        raise InputError(
            f"--evaluate must name the evaluator's file, as in python eval.py {OUT}, or --protect must; got "
            f"{evaluate!r}"
        )
    program, *arguments = shlex.split(evaluate)
    sources, words = {}, [str(named[program][1]) if program in named else program]
    for path in [*(_split(word)[1] for word in arguments), *protect]:
        if path in named and not os.path.relpath(path).startswith(".."):
            sources[os.path.relpath(path)] = named[path][1]
    for head, path in map(_split, arguments):
        name = os.path.relpath(path)
        words.append(head + (name if name in sources else str(named[path][1]) if path in named else path))
    copied = {name: digest_of(read_contents(source)) for name, source in sources.items()}
    copy = once(copies / combine({"command": evaluate, **digests}), lambda target: _copy(sources, target))
    return Guard(
        evaluate=shlex.join(words), evaluator=str(copy), copied=copied, protect=digests, ignored=ignored
    )


def _name(path: str) -> str:
    """Return a path as seen from the current folder, or the absolute one if it is outside."""
    name = os.path.relpath(path)
    return os.path.abspath(path) if name.startswith("..") else name


def _protect(path: str, folder: Path, tracked: Container[str] | None) -> tuple[str, Path]:
    """Return the name of a protected path, as seen from the folder of each command, and where it is."""
    absolute = Path(os.path.abspath(path))
    if absolute == Path.cwd() or absolute in Path.cwd().parents:
        raise InputError(f"--protect {path} has the folder of the commands in it; name paths within")
    name = _name(path)
    if tracked is not None:
        name = os.path.relpath(path) if os.path.relpath(path) in tracked else str(absolute)
    contents = read_contents(folder / name)
    bad = [inner for inner, (digest, _) in contents.items() if digest in UNREADABLE]
    if bad or not contents:
        what = f"has {bad[0]}, which cannot be read" if bad else "does not exist, or has no file"
        raise InputError(f"--protect {path} {what}")
    return name, folder / name


def _copy(sources: Mapping[str, Path], target: Path) -> None:
    """Copy files and folders to their names below `target`. Link those that are large."""
    target.mkdir()
    for name, source in sources.items():
        if any(str(above) in sources for above in Path(name).parents):
            continue  # it comes with a folder around it
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if sum(info.st_size for _, _, info in _walk(str(source))) > COPIED:
            copy.symlink_to(source.resolve())
        elif source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NO_CONTENT))
        else:
            shutil.copy2(source, copy)


class Watch:
    """The protected files, and the files in the folder of a command, as they were before a run.

    `own` is the folder of the run itself. Raises CommandFailed if a protected path differs from its content
    at the beginning.
    """

    def __init__(self, guard: Guard, folder: Path, own: Path) -> None:
        self.guard, self.folder, self.ignored = guard, folder, [*guard.ignored, str(own)]
        self.protected = {path: read_contents(self.folder / path) for path in guard.protect}
        for path, contents in self.protected.items():
            if digest_of(contents) != guard.protect[path]:
                raise CommandFailed(
                    f"--protect {path} has changed since the comparison began. Restore it and resume, or "
                    f"begin another comparison",
                    "",
                )
        self.files = _list_files(folder, self.ignored)

    def finish(self) -> list[str]:
        """Return the names of files that the run left in the folder.

        Raises CommandFailed if a protected file has changed, even if it was restored. Or, with an evaluator,
        if the run left a checkpoint.
        """
        for path, before in self.protected.items():
            after = read_contents(self.folder / path)
            if names := _differing(before, after):
                what = "changed" if digest_of(before) != digest_of(after) else "written and restored"
                shown = path if names == ["."] else f"{path}, {_listed(names)},"
                raise CommandFailed(f"--protect {shown} was {what} during this run, so it does not count", "")
        files = _list_files(self.folder, self.ignored)
        left = [] if self.files is None or files is None else _differing(self.files, files)
        saved = [name for name in left if self._is_checkpoint(self.folder / name)]
        if saved and self.guard.evaluate:
            raise CommandFailed(
                f"with --evaluate a run must leave no checkpoint that a later run could read, and this one "
                f"left {_listed(saved)} in {self.folder}. Write to {OUT}, or name a cache with --cache",
                "",
            )
        return left

    @staticmethod
    def _is_checkpoint(file: Path) -> bool:
        with suppress(OSError):  # it was deleted
            return file.suffix in CHECKPOINTS or file.lstat().st_size > SMALL
        return False


def _list_files(folder: Path, ignored: Iterable[str]) -> Contents | None:
    """Return size and time of the last change of each file in a folder, or None if there are too many."""
    files: Contents = {}
    skipped = {os.path.normpath(folder / path) for path in ignored}
    for path, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name not in USUAL and os.path.join(path, name) not in skipped
        ]
        for name in names:
            file = os.path.join(path, name)
            if name not in USUAL and file not in skipped:
                with suppress(OSError):  # it was deleted meanwhile
                    info = os.lstat(file)
                    files[os.path.relpath(file, folder)] = str(info.st_size), info.st_ctime_ns
        if len(files) > WATCHED:
            return None
    return files


def _differing(before: Contents, after: Contents) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


Run = Callable[[list[str], str | None, list[Path], Mapping[str, str]], dict[str, Any]]


def evaluate(guard: Guard, seed: int, out: Path, files: list[Path], run: Run) -> dict[str, Any]:
    """Run the evaluator in a new copy on an output that must not change. Return the measurement."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "evaluator"
        try:
            shutil.copytree(guard.evaluator, copy, symlinks=True)
        except (OSError, shutil.Error) as error:
            raise CommandFailed(
                f"the copy {guard.evaluator} for --evaluate is not complete: {error}", ""
            ) from None
        for name, digest in guard.copied.items():
            if digest_of(read_contents(copy / name)) != digest:
                raise CommandFailed(f"{name} in the copy {guard.evaluator} for --evaluate has changed", "")
        if link := next((file for file in out.rglob("*") if _leads_out(file, out)), None):
            raise CommandFailed(f"--evaluate reads no link that leads out of {OUT}, such as {link.name}", "")
        before = digest_of(read_contents(out))
        words = [w.replace(SEED, str(seed)).replace(OUT, str(out)) for w in shlex.split(guard.evaluate)]
        with _read_only(out):  # compiled modules beside the sources are not used
            measured = run(words, str(copy), files, {"PYTHONPYCACHEPREFIX": f"{temporary}/compiled"})
        if digest_of(read_contents(out)) != before:
            raise CommandFailed(f"{OUT} changed during --evaluate, which must not write there", "")
    return measured


def _leads_out(file: Path, folder: Path) -> bool:
    return file.is_symlink() and not file.resolve().is_relative_to(folder.resolve())


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """Take the permission to write from a folder and all in it, which binds every user but root."""
    modes = {path: path.stat().st_mode for path in (folder, *folder.rglob("*")) if not path.is_symlink()}
    try:
        for path, mode in reversed(modes.items()):
            path.chmod(stat.S_IMODE(mode) & ~READ_ONLY)
        yield
    finally:
        for path, mode in modes.items():
            with suppress(FileNotFoundError):
                path.chmod(stat.S_IMODE(mode))


def delete(out: Path) -> None:
    """Delete the output of a run, which may be read-only if its evaluation was killed."""
    for folder, _, _ in os.walk(out):
        os.chmod(folder, 0o700)
    shutil.rmtree(out, ignore_errors=True)
