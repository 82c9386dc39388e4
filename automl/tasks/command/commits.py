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
from typing import Any

from automl.base.errors import InputError
from automl.judge.ledger import split_command
from automl.storage import git
from automl.storage.cache_folder import cache_root

FOLDER = "commits"  # in the cache, with the copies
SHORT = 7  # characters of a hash in names
PATIENCE = 60.0  # time of a Python that starts and finds packages [s]
PROJECT = ("pyproject.toml", "setup.py", "setup.cfg")  # files of a folder that can be installed
PYTHON = re.compile(r"(^|/)python[\d.]*$")
OPTION = re.compile("-[BEIOPSbdiqsuv]+")  # an option of Python before the program
# Print the folders of `sys.path`, and where a Python would import each of the named packages from.
FIND = """
import importlib.util, json, sys
specs = filter(None, map(importlib.util.find_spec, sys.argv[1:]))
places = ((spec.name, [*(spec.submodule_search_locations or ()), spec.origin or ""]) for spec in specs)
print(json.dumps([sys.path, {name: origins[0] for name, origins in places}]))
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


def copy_commits(
    commits: Sequence[Commit], command: str, *, trust: bool
) -> tuple[list[Path], list[str], list[str]]:
    """Copy each commit for a command. Return what stands for the current folder in each copy.

    Also return the folders from which Python must import first, relative to it, and warnings. `trust` is as
    in `git.copy_commit`. Raise InputError if a commit lacks the folder, or cannot be checked out as it is.
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
    imports, foreign = _find_imports(root.resolve(), copies[-1], inner, command)
    if foreign:
        notes[f"{', '.join(foreign)} come from {root}, so that all commits may run the same program"] = None
    warnings = [f"In copies of commits: {note}." for note in notes]
    return [copy / inner for copy in copies], [os.path.relpath(path, inner) for path in imports], warnings


def _find_imports(root: Path, copy: Path, inner: Path, command: str) -> tuple[list[Path], list[str]]:
    """Return the folders below `root` from which the Python of a command imports, relative to it."""
    # They are those of packages installed for editing, of `PYTHONPATH`, and of the layout with `src`. Also
    # return the packages that it imports from there even if the folders of a copy come first.
    source = copy / "src"
    paths = (*copy.iterdir(), *(source.iterdir() if source.is_dir() else ()))
    stems = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").is_file()}
    names = [stem for stem in stems if stem.isidentifier() and not stem.startswith("__")]
    folders, origins = _ask_python(command, names, Path(os.sep), ())
    below = [Path(path).resolve() for path in (*folders, *map(os.path.dirname, origins.values())) if path]
    imports = {path.relative_to(root): None for path in below if path.is_relative_to(root)}
    if any((copy / name).is_file() for name in PROJECT) and not (source / "__init__.py").exists():
        imports[Path("src")] = None
    kept = [path for path in imports if (copy / path).is_dir()]
    _, origins = _ask_python(command, names, copy / inner, [copy / path for path in kept])
    return kept, [name for name, path in origins.items() if Path(path).resolve().is_relative_to(root)]


def _ask_python(
    command: str, names: Sequence[str], folder: Path, first: Sequence[Path]
) -> tuple[list[str], dict[str, str]]:
    """Return `sys.path` and the origins of packages in the Python of a command, with some folders `first`."""
    words = list(split_command(command))
    at = next((i for i, word in enumerate(words) if PYTHON.search(word) and shutil.which(word)), None)
    start = ["python3"] if at is None else [words[at], *takewhile(OPTION.fullmatch, words[at + 1 :])]
    call = [*start, "-c", FIND, *names]
    options: Any = {"cwd": folder, "env": with_imports(first), "stdin": subprocess.DEVNULL}
    with suppress(OSError, ValueError, subprocess.SubprocessError):  # such as another program of that name
        done = subprocess.run(call, **options, capture_output=True, text=True, timeout=PATIENCE, check=True)
        folders, origins = json.loads(done.stdout.splitlines()[-1])
        return folders, origins
    return [], {}


def with_imports(folders: Sequence[Path]) -> dict[str, str]:
    """Return the environment of a command that imports packages from some folders first."""
    environment = git.clean_environment()
    paths = [*map(str, folders), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})
