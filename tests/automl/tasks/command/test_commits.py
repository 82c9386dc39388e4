"""Comparisons of commits of a repository."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import automl.trials.session
from automl.base.errors import InputError
from automl.judge.verdict import ConfirmResult
from automl.tasks.command.commits import copy_commits, find_commits, with_imports
from automl.tasks.command.referee import run_referee
from automl.tasks.command.run_ledger import run_ledger
from tests.helpers.confirm_cases import FakeCommands

COMMAND = "python train.py --seed {seed}"


def git(folder: Path, *words: str) -> None:
    options = ("-c", "user.name=me", "-c", "user.email=me@here", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, played: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with three commits of `code/train.py`. Its folder `code` is the current one."""
    monkeypatch.setenv("AUTOML_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "my repository"
    root.mkdir()
    git(root, "init")
    (root / "README").write_text("empty")
    git(root, "add", ".")
    git(root, "commit", "-m", "Begin")
    (root / "code").mkdir()
    for line in ("slow", "fast"):
        (root / "code/train.py").write_text(line)
        git(root, "add", ".")
        git(root, "commit", "-m", f"Be {line}")
    (root / "code/train.py").write_text("not committed")
    monkeypatch.chdir(root / "code")
    score = {"baseline": 0.0}
    workers = FakeCommands(lambda variant, seed: score.get(variant, 9.0) + seed % 7 / 100)
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    return root


def compare(**options: Any) -> ConfirmResult:
    whole = {"command": COMMAND, "metric": "acc=(.*)", "baseline_ref": "HEAD~1", "candidate_refs": ["HEAD"]}
    return run_referee(**{**whole, "name": "mine", "seed": 1, **options})


def test_commits_run_in_clean_copies(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare()
    assert result.verdict.final == "better"
    variants = {variant["name"]: variant["config"] for variant in result.value["variants"]}
    baseline, candidate = variants
    assert baseline == "baseline"
    assert candidate.startswith("candidate ")
    folders = [Path(config["data"]["path"]) for config in variants.values()]
    assert [(folder / "train.py").read_text() for folder in folders] == ["slow", "fast"]
    assert (repository / "code/train.py").read_text() == "not committed"
    shown = capsys.readouterr().err
    assert "--baseline-ref HEAD~1 is" in shown
    assert "Be fast" in shown
    assert "warning: uncommitted changes are in none of these commits" in shown
    again = run_referee(resume="mine")
    assert again.verdict.final == "better"


def test_protected_files_are_the_same_in_all_commits(repository: Path) -> None:
    (repository / "code/data").write_text("ignored by git")
    result = compare(
        command=f"{COMMAND} {{out}}", evaluate="cat ../README {out}/acc", protect=["data", "../README"]
    )
    training = result.value["variants"][1]["config"]["training"]
    copy = Path(training["guard"]["evaluator"])
    assert set(training["guard"]["protect"]) == {"../README", str(repository / "code/data")}
    assert [file.name for file in copy.iterdir()] == ["data"]
    for option in ({"protect": "train.py"}, {"evaluate": "cat train.py {out}/acc"}):
        with pytest.raises(InputError, match=r"train.py is protected .* and not the same in --baseline-ref"):
            compare(command=f"{COMMAND} {{out}}", **option)


@pytest.mark.slow("comparisons of commits")
def test_a_ledger_of_commits_runs_what_was_named_here(repository: Path) -> None:
    """Neither the head as the baseline nor the final comparison asks to trust the command again."""
    options: dict[str, Any] = {"metric": "acc=(.*)", "candidate_refs": "HEAD", "ledger": "../runs"}
    accepted = run_referee(command=COMMAND, baseline_ref="HEAD~1", **options)
    assert accepted.verdict.final == "better"
    (repository / "code/train.py").write_text("faster")
    git(repository, "commit", "--all", "-m", "Be faster")
    assert run_referee(**options).verdict.final == "better"
    ledger = run_ledger("../runs", final=True)
    assert [len(head.program.commit) for head in ledger.heads] == [40, 40, 40]
    assert len(ledger.finals) == 1
    assert ledger.finals[0]["difference"] == pytest.approx(9)


INSTALLS = {
    "src": "sys.path.append(ROOT + '/src')",
    ".": "sys.path.append(ROOT + '/src/inner')",
    "finder": "sys.meta_path.append(Finder)",
    "first": "sys.meta_path.insert(0, Finder)",
}
FINDER = """
import importlib.util, sys
ROOT = {root!r}
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "mypack":
            return importlib.util.spec_from_file_location(name, ROOT + "/src/mypack/__init__.py")
"""


@pytest.mark.parametrize("install", INSTALLS)
def test_packages_installed_for_editing_are_those_of_the_copy(
    install: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = repository / ("src/inner/mypack" if install == "." else "src/mypack")
    package.mkdir(parents=True)
    for text in ("old", "new"):
        (package / "__init__.py").write_text(f"print({text!r})")
        git(repository, "add", ".")
        git(repository, "commit", "-m", text)
    (tmp_path / "sitecustomize.py").write_text(FINDER.format(root=str(repository)) + INSTALLS[install])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = f"sh -c '{sys.executable} train.py' {{seed}}"
    folders, imports, warnings = copy_commits(find_commits("HEAD~1", ["HEAD"]), command, trust=False)
    environment = with_imports([folders[0] / path for path in imports])
    words = [sys.executable, "-c", "import mypack"]
    printed = subprocess.run(words, cwd=folders[0], env=environment, capture_output=True, text=True)
    assert printed.stdout == ("new\n" if install == "first" else "old\n")
    assert ("mypack come from" in "".join(warnings)) == (install == "first")
