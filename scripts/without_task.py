"""Run tests in a copy of the project that lacks one task or several: nothing else may need them.

Usage:

    python scripts/without_task.py stereo                     all tests that are not the task's
    python scripts/without_task.py stereo tests/search -x     some of them, with arguments of pytest
    python scripts/without_task.py stereo,segmentation        without both

The copy is in a temporary folder. It has the files that git knows, without the folder of each task,
the folder of its tests, and the tests elsewhere that import it, which are named.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def tests_of(task: str) -> set[Path]:
    """Return the test files outside of a task's folder that import it, or a module of tests that does."""
    texts = {file: file.read_text() for file in (ROOT / "tests").rglob("*.py") if task not in file.parts}
    matches: set[Path] = set()
    names = [re.escape(f"automl.tasks.{task}")]
    while True:
        needs = re.compile(rf"^\s*(from|import) ({'|'.join(names)})\b", re.M)
        more = {file for file, text in texts.items() if file not in matches and needs.search(text)}
        if not more:
            return matches
        matches |= more
        helpers = [file.stem for file in more if file.parent.name == "helpers"]
        names += [rf"tests\.helpers(\.| import .*\b){re.escape(name)}" for name in helpers]


def copy_without(tasks: list[str], folder: Path) -> None:
    """Copy the files of the project to `folder`, without those of the tasks."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    tests = {str(file.relative_to(ROOT)) for task in tasks for file in tests_of(task)}
    print(f"left out, as they import a task: {', '.join(sorted(tests))}", flush=True)
    left_out = tuple(f"{top}automl/tasks/{task}/" for top in ("", "tests/") for task in tasks)
    for name in listed.stdout.splitlines():
        if not name.startswith(left_out) and name not in tests and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main() -> int:
    """Run the tests. Return the exit status of pytest."""
    names = sorted(file.parent.name for file in (ROOT / "automl" / "tasks").glob("*/__init__.py"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", help=f"names with commas between: {', '.join(names)}")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of pytest")
    options = parser.parse_args()
    tasks = options.tasks.split(",")
    if unknown := sorted({*tasks} - {*names}):
        parser.error(f"no task is called {', '.join(unknown)}; there are {', '.join(names)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "project"
        copy_without(tasks, folder)
        arguments = [
            each for each in options.arguments if (folder / each).exists() or not (ROOT / each).exists()
        ]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            check=False,
        ).returncode


if __name__ == "__main__":
    raise SystemExit(main())
