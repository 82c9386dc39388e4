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
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from automl.base.errors import InputError
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
READ_ONLY = 0o222  # the bits of a file's mode that allow writing

Contents = dict[str, tuple[str, int]]  # digest of each file, and the time of its last change, by name
_known: dict[str, tuple[tuple[int, ...], str]] = {}  # digests of files beyond `REREAD`, with their times


def read_contents(path: str | Path) -> Contents:
    """Return the digest of each file of a path and the time of its last change, by its name below it."""
    files, size = {}, 0
    for name, file, info in _walk(str(path)):
        size += info.st_size
        key = (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)
        known = _known.get(file) if size > REREAD else None
        digest = known[1] if known is not None and known[0] == key else _digest(file, info.st_mode)
        if size > REREAD:
            _known[file] = key, digest
        files[name] = digest, info.st_ctime_ns
    return files


def _walk(
    path: str, name: str = ".", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and state of each file. Follow links, except to a folder above them."""
    try:
        info = os.stat(path)
    except OSError:
        return  # it does not exist
    here = info.st_dev, info.st_ino
    if not stat.S_ISDIR(info.st_mode) or not os.access(path, os.R_OK | os.X_OK):
        yield name, path, info
    elif here not in above:
        for inner in sorted(os.listdir(path)):
            if inner not in NO_CONTENT:
                yield from _walk(f"{path}/{inner}", os.path.normpath(f"{name}/{inner}"), (*above, here))


def _digest(file: str, mode: int) -> str:
    """Return the digest of a file, or an empty text if it cannot be read."""
    with suppress(OSError):
        if stat.S_ISREG(mode):  # opening a pipe would wait
            with open(file, "rb") as content:
                return hashlib.file_digest(content, "sha256").hexdigest()
    return ""


def digest_of(contents: Contents) -> str:
    """Return one digest of the contents of a path."""
    lines = (f"{name}\0{digest}\n" for name, (digest, _) in sorted(contents.items()))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def named_paths(evaluate: str) -> list[str]:
    """Return the paths in the command of an evaluator: its program, if it is a path, and its arguments."""
    words = [word for i, word in enumerate(shlex.split(evaluate)) if i > 0 or os.sep in word]
    return [word for word in words if os.path.exists(word)]


def make_guard(
    evaluate: str,
    protect: Sequence[str],
    ignored: Sequence[str],
    *,
    folder: Path,
    tracked: Container[str] | None,
    copies: Path,
) -> Guard:
    """Return what is checked around each run, with a copy of the evaluator's files in `copies`.

    `folder` is where the baseline runs: the current folder, or that of its commit, which has the paths
    `tracked`. Other paths are those of the current folder for all commits. Those outside of it, and the
    evaluator's program, are not copied.

    Raises InputError if a path cannot be read, or the evaluator has none.
    """
    names = {}
    for path in [*named_paths(evaluate), *protect]:
        names[path] = relative = os.path.relpath(path)
        if relative not in tracked if tracked is not None else relative.startswith(".."):
            names[path] = os.path.abspath(path)
        _check(path, folder / names[path])
    digests = {name: digest_of(read_contents(folder / name)) for name in names.values()}
    guard = Guard(protect=digests, ignored=[os.path.relpath(path) for path in ignored])
    if not evaluate:
        return guard
    if not digests:
        raise InputError(
            f"--evaluate must name the evaluator's file, as in python eval.py {OUT}, or --protect must; got "
            f"{evaluate!r}"
        )
    program, *arguments = shlex.split(evaluate)
    inside = {path: os.path.relpath(path) for path in (*arguments, *protect) if path in names}
    copied = {name: folder / names[path] for path, name in inside.items() if not name.startswith("..")}
    words = [str(folder / names[program]) if program in names else program]
    for word in arguments:
        name = inside.get(word, word)
        words.append(name if word not in inside or name in copied else str(folder / names[word]))
    return replace(guard, evaluate=shlex.join(words), evaluator=str(_copy(copied, copies)))


def _check(path: str, source: Path) -> None:
    """Raise InputError if a path cannot be protected."""
    if Path(os.path.abspath(path)) in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"--protect {path} has the folder of the commands in it; name paths within")
    contents = read_contents(source)
    if not contents:
        raise InputError(f"--protect {path} does not exist, or has no file")
    if bad := [name for name, (digest, _) in contents.items() if not digest]:
        raise InputError(f"--protect {path} has a file that cannot be read: {bad[0]}")


def _copy(sources: Mapping[str, Path], copies: Path) -> Path:
    """Copy files and folders, or link large ones, into a folder that has the name of its digest."""
    copies.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=copies))
    for name, source in sources.items():
        if any(str(above) in sources for above in Path(name).parents):
            continue  # it comes with a folder around it
        copy = new / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if sum(info.st_size for _, _, info in _walk(str(source))) > COPIED:
            copy.symlink_to(source.resolve())
        elif source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NO_CONTENT))
        else:
            shutil.copy2(source, copy)
    target = copies / digest_of(read_contents(new))
    if digest_of(read_contents(target)) != target.name:
        shutil.rmtree(target, ignore_errors=True)  # it was changed, or does not exist
    try:
        return new.rename(target)
    except OSError:  # another comparison has the same evaluator
        shutil.rmtree(new)
        return target


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


@contextmanager
def evaluating(guard: Guard, seed: int, out: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the command of the evaluator and its folder, a new copy. The output must not change meanwhile."""
    with tempfile.TemporaryDirectory() as temporary:
        copy, kept = Path(temporary) / "evaluator", Path(guard.evaluator)
        with suppress(OSError):
            shutil.copytree(kept, copy, symlinks=True)
        if digest_of(read_contents(copy)) != kept.name:
            raise CommandFailed(
                f"--evaluate cannot run, since its copy {kept} has changed. Begin another comparison", ""
            )
        root = out.resolve()
        if link := next((path for path in out.rglob("*") if not path.resolve().is_relative_to(root)), None):
            raise CommandFailed(f"--evaluate reads no link that leads out of {OUT}, such as {link.name}", "")
        before = digest_of(read_contents(out))
        words = [w.replace(SEED, str(seed)).replace(OUT, str(out)) for w in shlex.split(guard.evaluate)]
        with _read_only(out):  # compiled modules beside the sources are not used
            yield ["env", f"PYTHONPYCACHEPREFIX={temporary}/compiled", *words], str(copy)
        if digest_of(read_contents(out)) != before:
            raise CommandFailed(f"{OUT} changed during --evaluate, which must not write there", "")


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
