"""Run git: read the user's repository, and copy a commit of it into a folder.

A hook, an alias or `git rebase --exec` has variables that name the repository of the calling git. No call
here gets them. Hooks, and filters that the repository itself configures, run only if they are trusted.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from automl.base.errors import InputError

# Variables beside those that `git rev-parse --local-env-vars` lists: they forbid references, or change paths.
PATHSPECS = [f"GIT_{kind}_PATHSPECS" for kind in ("LITERAL", "GLOB", "NOGLOB", "ICASE")]
OTHERS = ("GIT_QUARANTINE_PATH", "GIT_ATTR_SOURCE", *PATHSPECS)
HOOKS = ("post-checkout", "post-index-change", "reference-transaction")  # that a checkout runs
DRIVER = re.compile(r"filter\.(.*)\.(smudge|process)")
POINTER = b"version https://git-lfs.github.com/spec/"  # the beginning of a file that Git LFS keeps elsewhere
NAMED = 3  # largest number of names in a message
SUBMODULE = "160000"  # the mode of a submodule in a tree


class GitError(InputError):
    """A call of git failed. The message has git's own words."""


def run_git(
    *words: str,
    folder: Path | str = ".",
    hooks: str | None = os.devnull,
    sent: str = "",
    timeout: float | None = None,
) -> str:
    """Return what git prints. Raise GitError if it reports an error or is not installed.

    It runs the hooks of a folder, by default none. With None, those of the configuration.
    """
    command = ["git", "-c", "core.fsmonitor=false"]
    command += [*(() if hooks is None else ("-c", f"core.hooksPath={hooks}")), *words]
    own = {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LANGUAGE": "en"}
    options: Any = {"cwd": folder, "env": clean_environment() | own, "input": sent, "timeout": timeout}
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, **options, capture_output=True, encoding="utf-8", errors="surrogateescape", check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(f"git {words[0]} failed: {error}") from error
    if done.returncode or re.search("^(error|fatal):", done.stderr, re.MULTILINE):
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise GitError(f"git {words[0]} failed: {reason}")
    return done.stdout.strip("\n")


def clean_environment() -> dict[str, str]:
    """Return the environment of this process without the variables that name a repository."""
    local = {*_local_variables(), *OTHERS}
    return {name: value for name, value in os.environ.items() if name not in local}


@cache
def _local_variables() -> Sequence[str]:
    with suppress(OSError, subprocess.CalledProcessError):  # without git
        words = ["git", "rev-parse", "--local-env-vars"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    return ()


def find_root() -> Path:
    """Return the top folder of the repository around the current folder."""
    try:
        return Path(run_git("rev-parse", "--show-toplevel"))
    except GitError as error:
        ignored = ", ".join(name for name in ("GIT_DIR", "GIT_WORK_TREE") if name in os.environ)
        unused = ignored and f" ({ignored} of the environment is not used)"
        raise GitError(
            f"{error}{unused}. Commits need a folder of a git repository: change to one"
        ) from error


def find_object(name: str) -> str | None:
    """Return the hash of an object of the repository around the current folder, or None if it has none."""
    words = run_git("cat-file", "--batch-check", sent=f"{name}\n").split()
    return words[0] if words[-1].isdigit() else None  # the hash, the type and the size


def changed_files(root: Path) -> list[str]:
    """Return the tracked files of the repository at `root` that differ from its commit."""
    words = ("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames")
    return [line[3:] for line in run_git(*words, folder=root).split("\0") if line]


def copy_commit(root: Path, commit: str, copy: Path, *, trust: bool) -> list[str]:
    """Check out a commit of the repository at `root` into an empty folder, with the submodules used there.

    The copy shares the objects of the repository. With `trust`, hooks of the repository and filters of its
    own configuration run. Return notes on what differs from a checkout in the repository itself. Raise
    GitError if the files could not be made as the commit has them.
    """
    paths = ("objects", "shallow", "info/attributes", "hooks")
    words = [word for path in paths for word in ("--git-path", path)]
    words = ["rev-parse", "--path-format=absolute", "--show-object-format", *words]
    lines = run_git(*words, folder=root, hooks=None).split("\n")
    if len(lines) != 1 + len(paths):
        raise GitError(f"git cannot share a repository whose path has a line break: {str(root)!r}")
    kind, objects, shallow, attributes, hooks = lines
    run_git("init", "--quiet", "--template=", f"--object-format={kind}", str(copy), folder=root)
    (copy / ".git/info").mkdir()
    (copy / ".git/objects/info/alternates").write_text(f"{objects}\n")
    for source, target in ((shallow, "shallow"), (attributes, "info/attributes")):
        if os.path.isfile(source):
            shutil.copy(source, copy / ".git" / target)
    skipped = _configure(root, copy, trust=trust)
    form = "--format=%(objectname) create %(refname) %(objectname)"
    references = run_git("for-each-ref", form, folder=root)
    known = run_git("cat-file", "--batch-check=%(rest)", folder=root, sent=f"{references}\n").split("\n")
    created = [
        f"{line}\n" for line in known if line.startswith("create ")
    ]  # the objects of others are missing
    run_git("update-ref", "--stdin", folder=copy, sent="".join(created))
    run_git("checkout", "--quiet", "--detach", commit, folder=copy, hooks=hooks if trust else os.devnull)
    changed = changed_files(copy)
    if missing := [file for file in changed if not os.path.lexists(copy / file)]:
        raise GitError(f"git checkout left out {_named(missing)}")
    notes = [f"{_named(changed)} differ from the commit"] if changed else []
    if not trust and (present := [name for name in HOOKS if os.access(os.path.join(hooks, name), os.X_OK)]):
        notes.append(f"the repository's hook {', '.join(present)} did not run; --trust runs it")
    notes += _check_filters(copy, skipped)
    for line in filter(None, run_git("ls-files", "--stage", "-z", folder=copy).split("\0")):
        (mode, digest, _), path = line.split("\t")[0].split(), line.partition("\t")[2]
        if mode == SUBMODULE and (root / path / ".git").exists():
            notes += copy_commit(root / path, digest, copy / path, trust=trust)
        elif mode == SUBMODULE:
            notes.append(f"the submodule {path} is not checked out in {root}, and empty in copies")
    return notes


def _configure(root: Path, copy: Path, *, trust: bool) -> set[str]:
    """Give the copy what decides the contents of its files. Return the filters that are left out."""
    fields = run_git("config", "--list", "--null", "--show-scope", folder=root).split("\0")
    own, filters = list[tuple[str, str]](), (set[str](), set[str]())
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        (key, _, value), is_own = entry.partition("\n"), scope in ("local", "worktree")
        if value not in ("", "cat") and (match := DRIVER.fullmatch(key)):
            filters[is_own].add(match[1])
        own += [(key, value)] if is_own else []
    kept = r"core\.(autocrlf|eol|attributesfile)"  # the contents of files may differ by them
    if any(key.endswith(".promisor") for key, _ in own):  # the rest of a partial clone is fetched
        kept += r"|remote\..*\.(url|promisor|partialclonefilter)"
    kept += r"|filter\..*|lfs\..*" * trust
    for key, value in own:
        if re.fullmatch(kept, key):
            run_git("config", "--add", key, value, folder=copy)
    return set() if trust else filters[True] - filters[False]


def _check_filters(copy: Path, skipped: Collection[str]) -> Iterator[str]:
    """Raise GitError if files need a filter that did not run. Yield a sentence on those of Git LFS."""
    for name in dict.fromkeys((*skipped, "lfs")):
        listed = run_git("ls-files", "-z", f":(attr:filter={name})", folder=copy).split("\0")
        files = [file for file in listed if file and (name in skipped or _is_pointer(copy / file))]
        if files and name in skipped:
            raise GitError(
                f"{_named(files)} need the filter {name}, which this repository itself configures and which "
                f"did not run. If you trust it, add --trust (from Python trust=True)"
            )
        if files:
            yield f"{_named(files)} are pointers of Git LFS"


def _is_pointer(file: Path) -> bool:
    with suppress(OSError), open(file, "rb") as content:
        return content.read(len(POINTER)) == POINTER
    return False


def _named(files: Sequence[str]) -> str:
    """Return the first names of files, and how many others there are."""
    more = f" and {len(files) - NAMED} others" if len(files) > NAMED else ""
    return ", ".join(files[:NAMED]) + more
