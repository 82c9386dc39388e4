"""Commits that a command runs in: find them, copy each, and import its packages from the copy."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from automl.base.errors import InputError
from automl.storage import git
from automl.storage.cache_folder import cache_root
from automl.tasks.command.config import split_command

FOLDER = "commits"  # in the cache, with the copies
SHORT = 7  # characters of a hash in names
PATIENCE = 60.0  # time of a Python that starts and finds packages [s]
PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")  # files of a folder that can be installed
PYTHON = re.compile(r"(^|/)python[\d.]*$")
OPTION = re.compile(r"-[A-Za-z]*[^mc]")  # an option of Python before the program
# Print the folders of `sys.path`, and where a Python would import each of the named packages from.
FIND = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
        found[name] = [*spec.submodule_search_locations or [], spec.origin][0]
    except Exception:
        pass
print(json.dumps([sys.path, found]))
"""


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit: the option that names it, the branch, tag or hash that was given, and its hash."""

    option: str
    ref: str
    digest: str

    def __str__(self) -> str:
        return f"{self.option} {self.ref}"


def find_commits(baseline: str, candidates: list[str]) -> list[Commit]:
    """Return the commits, the baseline first, and print each.

    Raise InputError if the current folder is in no repository, it has no such commit, or two are the same.
    """
    root = git.find_root()
    commits: list[Commit] = []
    for option, ref in [("--baseline-ref", baseline), *(("--candidate-ref", ref) for ref in candidates)]:
        digest = git.find_object(f"{ref}^{{commit}}")
        if digest is None:
            shallow = git.run_git("rev-parse", "--is-shallow-repository") == "true"
            raise InputError(
                f"{option} {ref} is no commit of the repository around {Path.cwd()}; give a branch, a tag or "
                f"a hash{', or run git fetch --unshallow, as this clone is shallow' if shallow else ''}"
            )
        commit = Commit(option=option, ref=ref, digest=digest)
        if same := next((other for other in commits if other.digest == digest), None):
            raise InputError(f"{same} and {commit} are the same commit, {digest[:SHORT]}; compare two")
        commits.append(commit)
        print(f"{commit} is {git.run_git('log', '-1', '--format=%h %s', digest)}", file=sys.stderr)
    if git.changed_files(root):
        print("warning: uncommitted changes are in none of these commits", file=sys.stderr)
    return commits


def same_content(commit: str, tree: str) -> str | None:
    """Return a commit of the repository with these files: this one, or after it was amended another one."""
    if git.find_object(f"{commit}^{{commit}}") is not None:
        return commit
    lines = git.run_git("log", "--all", "--format=%T %H").splitlines()
    return next((line.split()[1] for line in lines if line.startswith(f"{tree} ")), None)


def find_tracked(paths: Sequence[str], commits: Sequence[Commit]) -> set[str]:
    """Return the protected and evaluator's `paths` that the commits have. InputError if they differ."""
    tracked = set()
    for path in paths:
        name = os.path.relpath(path)
        known = {git.find_object(f"{commit.digest}:./{name}") for commit in commits}
        if len(known) > 1:
            raise InputError(
                f"{path} is protected or the evaluator's, and not the same in {', '.join(map(str, commits))}"
                "; compare commits that leave it as it is"
            )
        tracked |= {name} if known != {None} else set()
    return tracked


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Copies of commits.

    Attributes:
        folders: In each copy, the folder that is the current one in the repository.
        imports: Folders of packages that Python shall import first, relative to each of the folders.
        warnings: Differences from a checkout, and packages that are imported from elsewhere in any case.
    """

    folders: Sequence[Path]
    imports: Sequence[str]
    warnings: Sequence[str]


def copy_commits(commits: Sequence[Commit], command: str, *, trust: bool) -> Copies:
    """Copy each commit for a command. `trust` is as in `git.copy_commit`.

    Raise InputError if a commit lacks the current folder, or cannot be checked out as it is.
    """
    root, notes, copies = git.find_root(), dict[str, None](), list[Path]()
    (cache_root() / FOLDER).mkdir(parents=True, exist_ok=True)
    inner = Path.cwd().resolve().relative_to(root.resolve())
    for commit in commits:
        copy = Path(tempfile.mkdtemp(prefix=f"{commit.digest[:SHORT]}-", dir=cache_root() / FOLDER))
        try:
            notes |= dict.fromkeys(git.copy_commit(root, commit.digest, copy, trust=trust))
        except git.GitError as error:
            raise InputError(f"{commit} cannot be checked out into {copy}: {error}") from error
        if not (copy / inner).is_dir():
            raise InputError(f"{commit} has no folder {inner}; run this in one that it has")
        copies.append(copy)
    imports, foreign = _find_imports(root, copies[-1], inner, command)
    return Copies(
        folders=[copy / inner for copy in copies],
        imports=[os.path.relpath(path, inner) for path in imports],
        warnings=[f"In copies of commits: {note}." for note in (*notes, *foreign)],
    )


def _find_imports(root: Path, copy: Path, inner: Path, command: str) -> tuple[list[Path], list[str]]:
    """Return the folders below `root` that the Python of a command imports from, relative to it, and notes.

    They are those of packages installed for editing, of `PYTHONPATH`, and of the layout with `src`. A note
    names packages that are imported from there even if the folders of a copy come first.
    """
    root, source = root.resolve(), copy / "src"
    names = sorted({
        path.stem
        for path in (*copy.iterdir(), *(source.iterdir() if source.is_dir() else ()))
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    })  # fmt: skip
    paths, found = _ask_python(command, names, Path(os.sep))
    below = [Path(path).resolve() for path in (*paths, *map(os.path.dirname, found.values())) if path]
    imports = {path.relative_to(root): None for path in below if path.is_relative_to(root)}
    if any((copy / name).is_file() for name in PROJECT) and not (source / "__init__.py").exists():
        imports[Path("src")] = None
    kept = [path for path in imports if (copy / path).is_dir()]
    _, found = _ask_python(command, names, copy / inner, [copy / path for path in kept])
    foreign = [name for name, path in found.items() if Path(path).resolve().is_relative_to(root)]
    if not foreign:
        return kept, []
    return kept, [f"the command imports {', '.join(foreign)} from {root}, so all commits may run the same"]


def _ask_python(
    command: str, names: Sequence[str], folder: Path, first: Sequence[Path] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the folders and the packages that the Python of a command finds, with some folders `first`."""
    words = list(split_command(command))
    position = next((i for i, word in enumerate(words) if PYTHON.search(word) and shutil.which(word)), None)
    python = shutil.which("python3") if position is None else shutil.which(words[position])
    options = [] if position is None else takewhile(OPTION.fullmatch, words[position + 1 :])
    with suppress(OSError, ValueError, subprocess.SubprocessError):  # such as another program of that name
        done = subprocess.run(
            [str(python), *options, "-c", FIND, *names], cwd=folder, env=with_imports(first),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=True,
        )  # fmt: skip
        paths, found = json.loads(done.stdout.splitlines()[-1])
        return paths, found
    return [], {}


def with_imports(folders: Sequence[Path]) -> dict[str, str]:
    """Return the environment of a command that imports packages from some folders first."""
    environment = git.clean_environment()
    paths = [*map(str, folders), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
