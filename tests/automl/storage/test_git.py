"""Copies of commits from all kinds of repositories, and from inside of a call of git."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from automl.storage.git import GitError, copy_commit, find_root

PROJECT = Path(__file__).parents[3]
# A hook that copies a commit the first time that git calls it, and notes if a file of the repository changed.
HOOK = f"""#!/bin/sh
[ ! -e "$CALLED/${{0##*/}}" ] || exit 0
exec {sys.executable} -S -c '
import os, pathlib, sys, tempfile
sys.path.insert(0, "{PROJECT}")
from automl.storage import git
def files():
    paths = [path for path in pathlib.Path(os.environ["HERE"]).rglob("*") if path.is_file()]
    return {{path: path.read_bytes() for path in paths if "objects" not in path.parts}}
before, called = files(), pathlib.Path(os.environ["CALLED"], sys.argv[1].rpartition("/")[2])
root, copy = git.find_root(), pathlib.Path(tempfile.mkdtemp(dir=os.environ["COPIES"]))
git.changed_files(root)
git.copy_commit(root, git.find_object("HEAD^{{commit}}"), copy, trust=False)
read = (copy / "a").read_text()
called.write_text(read if files() == before else "changed")
' "$0"
"""
HOOKS = ("pre-commit", "post-commit", "post-index-change", "reference-transaction")


def git(folder: Path, *words: str) -> str:
    options = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with two commits of the file `a`."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)
    root = tmp_path / "my repository"
    git(tmp_path, "init", "--initial-branch=main", str(root))
    for text in ("one", "two"):
        commit(root, a=text)
    return root


def commit(root: Path, **texts: str) -> str:
    for name, text in texts.items():
        (root / name.replace("_", ".")).write_text(text)
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Change")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def check_out(tmp_path: Path) -> Callable[..., tuple[Path, list[str]]]:
    """Return a function that copies a commit of a repository, and returns the copy and the notes."""

    def check_out(root: Path, name: str = "HEAD", *, trust: bool = False) -> tuple[Path, list[str]]:
        copy = tmp_path / f"copy {len(list(tmp_path.iterdir()))}"
        copy.mkdir()
        return copy, copy_commit(root, git(root, "rev-parse", name), copy, trust=trust)

    return check_out


def test_a_copy_made_in_a_hook_leaves_the_repository_as_it_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, outer = tmp_path / "all/here", tmp_path / "all"
    git(root, "clone", ".", str(outer))
    git(outer, "worktree", "add", "-b", "side", str(here))
    for name in ("called", "copies", "hooks"):
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HERE", str(outer))
    for name in HOOKS:
        (tmp_path / "hooks" / name).write_text(HOOK)
        (tmp_path / "hooks" / name).chmod(0o755)
    git(here, "config", "core.hooksPath", str(tmp_path / "hooks"))
    (here / "a").write_text("three")
    git(here, "commit", "--all", "--message", "Three")
    texts = {path.name: path.read_text() for path in (tmp_path / "called").iterdir()}
    assert texts.keys() == set(HOOKS)
    assert {*texts.values()} == {"two", "three"}, texts
    assert git(here, "status", "--porcelain") == ""


def test_a_copy_is_the_commit_whatever_the_clone_lacks(
    root: Path, tmp_path: Path, check_out: Callable[..., tuple[Path, list[str]]]
) -> None:
    commit(root, _gitattributes="*.txt text", b_txt="1\n")
    address = f"file://{root}"
    git(root, "config", "uploadpack.allowFilter", "true")
    git(root, "config", "uploadpack.allowAnySHA1InWant", "true")
    for number, options in enumerate(
        (("--depth", "2"), ("--filter=blob:none", "--no-checkout"), ("--sparse",))
    ):
        clone = tmp_path / f"clone {number}"
        git(tmp_path, "clone", *options, address, str(clone))
        git(clone, "config", "core.autocrlf", "true")
        copy, notes = check_out(clone, "HEAD~1")
        assert ({path.name for path in copy.iterdir()}, notes) == ({".git", "a"}, [])
        copy, notes = check_out(clone)
        assert ((copy / "b.txt").read_bytes(), notes) == (b"1\r\n", []), "as it is in the clone"
        assert git(copy, "rev-parse", "HEAD") == git(root, "rev-parse", "HEAD")
    (root / ".git/refs/heads/broken").write_text("1" * 40)
    odd = root.rename(tmp_path / "a \u2028 'of' \"b\"")
    assert ((check_out(odd)[0] / "b.txt").read_text(), odd.rename(root)) == ("1\n", root)
    with pytest.raises(GitError, match="whose path has a line break"):
        check_out(root.rename(tmp_path / "line\nbreak"))
    (tmp_path / "line\nbreak").rename(root)
    (root / ".git/refs/heads/broken").unlink()
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "--filter=blob:none", "--no-checkout", address, str(partial))
    root.rename(tmp_path / "gone")
    with pytest.raises(GitError, match="from promisor remote"):
        check_out(partial)


def test_filters_and_hooks_of_a_repository_run_with_trust_alone(
    root: Path, tmp_path: Path, check_out: Callable[..., tuple[Path, list[str]]]
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    commit(root, _gitattributes="*.bin filter=lfs", d_bin=pointer)
    assert check_out(root)[1] == ["d.bin are pointers of Git LFS"]
    git(root, "config", "filter.lfs.smudge", "sed s/version/content/")
    git(root, "config", "filter.lfs.clean", "sed s/content/version/")
    hook = root / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    with pytest.raises(GitError, match=r"^d\.bin need the filter lfs, .* add --trust"):
        check_out(root)
    copy, notes = check_out(root, "HEAD~1")
    assert "the repository's hook post-checkout did not run" in notes[0]
    assert not (copy / "hooked").exists()
    copy, notes = check_out(root, trust=True)
    assert (copy / "d.bin").read_text().startswith("content")
    assert ((copy / "hooked").exists(), notes) == (True, [])
    git(root, "config", "filter.lfs.smudge", "false")
    with pytest.raises(GitError, match="external filter 'false' failed"):
        check_out(root, trust=True)


def test_submodules_are_those_that_are_checked_out(
    root: Path, tmp_path: Path, check_out: Callable[..., tuple[Path, list[str]]]
) -> None:
    outer = tmp_path / "outer"
    git(tmp_path, "init", str(outer))
    git(outer, "submodule", "add", str(root), "inner")
    commit(outer, a="1")
    commit(outer / "inner", a="three")
    copy, notes = check_out(outer)
    assert ((copy / "inner/a").read_text(), notes) == ("two", [])
    git(outer, "submodule", "deinit", "--force", "inner")
    copy, notes = check_out(outer)
    assert f"the submodule inner is not checked out in {outer}" in notes[0]


def test_a_folder_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GitError, match=r"not a git repository .* Commits need a folder of a git repository"):
        find_root()
