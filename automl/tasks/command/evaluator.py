"""Score what commands write with an evaluator out of their reach, and compare files before and after runs.

A process may write all files of its user. So contents are compared with those at the beginning, and times of
changes, which only root can set, with those before the run. What a run reads is not seen.
"""

import os
import shlex
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from automl.base.atomic import replacing
from automl.base.errors import InputError
from automl.storage.contents import NO_CONTENT, Contents, digest_of, read_contents, walk
from automl.tasks.command import OUT, SEED, Guard
from automl.trials.job import CommandFailed
from search.record import NOT_STARTED

# Names of files and folders that runs may write, and suffixes of checkpoints.
USUAL = (
    *NO_CONTENT, ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    "wandb", "mlruns", "mlartifacts", "mlflow.db", "mlflow.db-journal",
)  # fmt: skip
CHECKPOINTS = (
    ".pt", ".pth", ".pt2", ".ckpt", ".bin", ".safetensors", ".pkl", ".pickle", ".joblib", ".npy", ".npz",
    ".h5", ".hdf5", ".keras", ".onnx", ".msgpack", ".tar", ".zip",
)  # fmt: skip
COPIES = "evaluators"  # in the cache
STORE = ".mlflow.db."  # begins the names of files beside the store, which is made during the first run
COPIED = 2**28  # larger paths are linked into the evaluator's copy [bytes]
SMALL = 2**20  # larger files count as checkpoints [bytes]
WATCHED, NAMED = 20_000, 5  # largest number of files in a folder that is watched, and of names in a message
ARCHIVE = ".tar"  # suffix of the packed output of a run
READ_ONLY = 0o222  # the bits of a file's mode that allow writing


def named_paths(evaluate: str) -> list[str]:
    """Return the paths in the command of an evaluator: its program, if it is a path, and its arguments."""
    words = [word for i, word in enumerate(shlex.split(evaluate)) if i > 0 or os.sep in word]
    return [word for word in words if os.path.exists(word)]


def make_guard(
    evaluate: str, protect: Sequence[str], ignored: Sequence[str], folder: Path, copies: Path,
    tracked: Container[str] | None,
) -> Guard:  # fmt: skip
    """Return what is checked around each run, with a copy of the evaluator's files in `copies`.

    `folder` is where the baseline runs: the current folder, or that of its commit, which has the paths
    `tracked`. Other paths are those of the current folder for all commits. Those outside of it, and the
    evaluator's program, are not copied. Raises InputError if a path or the evaluator cannot be used.
    """
    if not all([*protect, *ignored]):
        raise InputError("--protect and --cache must name a file or a folder; got ''")
    words, digests, copied, folders = shlex.split(evaluate), {}, {}, {}
    whole: Contents = {}  # of the copy
    for path in [*named_paths(evaluate), *protect]:
        own, absolute = os.path.relpath(path), os.path.abspath(path)
        is_inside = not own.startswith("..")
        name = own if (is_inside if tracked is None else own in tracked) else absolute
        contents = read_contents(folder / name)
        readable = contents and all(digest for digest, _ in contents.values())
        if not readable or Path(absolute) in (Path.cwd(), *Path.cwd().parents):
            raise InputError(
                f"--protect {path} must be a file, or a folder with files, that can be read and does not "
                f"have the current folder in it"
            )
        digests[name], folders[path] = digest_of(contents), str(folder / name)
        if is_inside and [path] != words[:1]:
            copied[own], folders[path] = folder / name, own
            whole |= {os.path.normpath(f"{own}/{inner}"): state for inner, state in contents.items()}
    guard = Guard(protect=digests, ignored=[os.path.relpath(path) for path in ignored])
    if not evaluate:
        return guard
    if not digests:
        raise InputError(
            f"--evaluate must name the evaluator's file, as in python eval.py {OUT}, or --protect must; got "
            f"{evaluate!r}"
        )
    copy = (copies / digest_of(whole)).absolute()
    _copy(copied, copy)
    return replace(guard, evaluate=shlex.join(folders.get(w, w) for w in words), evaluator=str(copy))


def _copy(sources: dict[str, Path], target: Path) -> None:
    """Copy files and folders, or link large ones, into a folder that has the name of their digest."""
    if target.is_dir() and digest_of(read_contents(target)) == target.name:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=target.parent))
    for name, source in sorted(sources.items()):
        copy = new / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if copy.exists():
            continue  # it came with the folder around it
        if sum(info.st_size for _, _, info in walk(str(source))) > COPIED:
            copy.symlink_to(source.resolve())
        elif source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NO_CONTENT))
        else:
            shutil.copy2(source, copy)
    shutil.rmtree(target, ignore_errors=True)  # it was changed, or does not exist
    with suppress(OSError):  # another comparison has just made it
        new.rename(target)


@contextmanager
def watching(guard: Guard, folder: Path, own: Path) -> Iterator[list[str]]:
    """Yield a list that gets the names of files that the run in between left in the folder of its command.

    `own` is the folder of the run. Raises CommandFailed if a protected file has changed, even if it was
    restored, or, with an evaluator, if the run left a checkpoint.
    """
    protected = {path: read_contents(folder / path) for path in guard.protect}
    for path, contents in protected.items():
        if digest_of(contents) != guard.protect[path]:
            raise CommandFailed(
                f"{NOT_STARTED}, since --protect {path} has changed since the beginning. Restore it and "
                f"resume, or begin again"
            )
    ignored = [*USUAL, str(own), *(os.path.normpath(folder / path) for path in guard.ignored)]
    files, left = _list_files(folder, ignored), list[str]()
    yield left
    for path, before in protected.items():
        after = read_contents(folder / path)
        if names := _differing(before, after):
            what = "changed" if digest_of(before) != digest_of(after) else "written and restored"
            shown = path if names == ["."] else f"{path}, {', '.join(names[:NAMED])},"
            raise CommandFailed(f"--protect {shown} was {what} during this run, so it does not count")
    later = _list_files(folder, ignored)
    if max(len(files), len(later)) < WATCHED:
        changed = [name for name in _differing(files, later) if name in later]  # not what was deleted
        left += [name for name in changed if not name.startswith(STORE)]
    saved = [name for name in left if Path(name).suffix in CHECKPOINTS or int(later[name][0]) > SMALL]
    if saved and guard.evaluate:
        raise CommandFailed(
            f"with --evaluate a run must leave no checkpoint that a later run could read, and this one left "
            f"{', '.join(saved[:NAMED])} in {folder}. Write to {OUT}, or name a cache with --cache"
        )


def _list_files(folder: Path, skipped: Collection[str]) -> Contents:
    """Return size and time of the last change of each file in a folder, up to a number of files."""
    states = islice(walk(str(folder), skipped, above=None), WATCHED)
    return {name: (str(info.st_size), info.st_ctime_ns) for name, _, info in states}


def _differing(before: Contents, after: Contents) -> list[str]:
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


@contextmanager
def evaluating(guard: Guard, seed: int, out: Path) -> Iterator[tuple[list[str], str]]:
    """Yield the command of the evaluator and its folder, a new copy. The output must not change meanwhile."""
    with tempfile.TemporaryDirectory() as temporary:
        copy, kept = Path(temporary) / "evaluator", Path(guard.evaluator)
        with suppress(OSError):
            shutil.copytree(kept, copy, symlinks=True)
        if digest_of(read_contents(copy)) != kept.name:
            raise CommandFailed(f"--evaluate cannot run, since its copy {kept} has changed. Begin again")
        root, before = out.resolve(), digest_of(read_contents(out))
        if link := next((path for path in out.rglob("*") if not path.resolve().is_relative_to(root)), None):
            raise CommandFailed(f"--evaluate reads no link that leads out of {OUT}, such as {link.name}")
        words = [w.replace(SEED, str(seed)).replace(OUT, str(out)) for w in shlex.split(guard.evaluate)]
        _allow_writing(out, False)
        try:  # compiled modules beside the sources are not used
            yield ["env", f"PYTHONPYCACHEPREFIX={temporary}/compiled", *words], str(copy)
        finally:
            _allow_writing(out, True)
        if digest_of(read_contents(out)) != before:
            raise CommandFailed(f"{OUT} changed during --evaluate, which must not write there")


def pack(out: Path) -> None:
    """Move the output of a run into an archive beside it, in which no later run comes upon it by a path."""
    if out.is_dir():
        _allow_writing(out, True)
        if any(out.iterdir()):
            with replacing(out.with_suffix(ARCHIVE)) as new, tarfile.open(new, "w") as archive:
                archive.add(out, out.name)
        delete(out)


def unpack(out: Path) -> None:
    """Restore the output of a run that `pack` has moved, if there is any."""
    if (file := out.with_suffix(ARCHIVE)).exists():
        delete(out)
        with tarfile.open(file) as archive:
            archive.extractall(out.parent, filter="tar")
    out.mkdir(exist_ok=True)


def delete(out: Path) -> None:
    """Delete the output of a run, which is read-only if its evaluation was killed."""
    _allow_writing(out, True)
    shutil.rmtree(out, ignore_errors=True)


def _allow_writing(folder: Path, allow: bool) -> None:
    """Let the user read and write a folder and all in it, or only not write. It binds every user but root."""
    for path, folders, files in os.walk(folder):
        for file in (path, *(os.path.join(path, name) for name in (*folders, *files))):
            with suppress(FileNotFoundError):  # a link to nothing
                mode = stat.S_IMODE(os.stat(file).st_mode)
                own = stat.S_IRWXU if os.path.isdir(file) else stat.S_IRUSR | stat.S_IWUSR
                os.chmod(file, mode | own if allow else mode & ~READ_ONLY)
