"""Check out commits of the repository around the current folder, each into a clean copy, for a referee."""

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from automl.base.errors import InputError
from automl.storage.cache_folder import cache_root

FOLDER = "commits"  # in the cache
SHORT = 7  # characters of a hash in names


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
    commits: list[Commit] = []
    for option, ref in [("--baseline-ref", baseline), *(("--candidate-ref", ref) for ref in candidates)]:
        digest = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if digest is None:
            raise InputError(
                f"{option} {ref} is no commit of the repository around {Path.cwd()}; give a branch, a tag or "
                f"a hash, in a folder of the repository"
            )
        commit = Commit(option=option, ref=ref, digest=digest)
        if same := next((other for other in commits if other.digest == digest), None):
            raise InputError(f"{same} and {commit} are the same commit, {digest[:SHORT]}; compare two")
        commits.append(commit)
        print(f"{commit} is {_git('log', '-1', '--format=%h %s', digest)}", file=sys.stderr)
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("warning: uncommitted changes are in none of these commits", file=sys.stderr)
    return commits


def check_out(commit: Commit) -> Path:
    """Return the folder in a new copy of the repository that is the current one here.

    Raise InputError if the commit has no such folder, or git fails.
    """
    root = Path(_git("rev-parse", "--show-toplevel") or ".")
    (cache_root() / FOLDER).mkdir(parents=True, exist_ok=True)
    copy = Path(tempfile.mkdtemp(prefix=f"{commit.digest[:SHORT]}-", dir=cache_root() / FOLDER))
    for words in (
        ("clone", "--quiet", "--shared", "--no-checkout", str(root), str(copy)),
        ("-C", str(copy), "checkout", "--quiet", "--detach", commit.digest),
    ):
        if _git(*words) is None:
            raise InputError(f"{commit} cannot be checked out into {copy}; try git {' '.join(words)}")
    inside = copy / Path.cwd().resolve().relative_to(root.resolve())
    if not inside.is_dir():
        raise InputError(f"{commit} has no folder {inside.relative_to(copy)}; run this in one that it has")
    return inside


def _git(*words: str) -> str | None:
    """Return what a command of git prints, or None if it fails. Raise InputError without git."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InputError("--baseline-ref needs git, which is not installed") from None
    return done.stdout.strip() if done.returncode == 0 else None
