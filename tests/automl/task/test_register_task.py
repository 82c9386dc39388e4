"""Tasks of installed packages and registered tasks are known by name."""

import subprocess
import sys
from pathlib import Path

import pytest

import automl
from automl.base.lazy import resolve
from search.config import TASKS
from search.spaces import load_space
from tests.helpers import FOLDER

TABLE = FOLDER / "tabular.py"
REFERENCE = "weighing:Weighing"

PACKAGE = """
from dataclasses import replace
from pathlib import Path

import tabular
from search.space import Space


def is_table(path):
    return Path(path).suffix == ".weights"


class Weighing(tabular.Weights):
    spec = replace(
        tabular.Weights.spec, detect="weighing:is_table", space="weighing", spaces=("weighing",)
    )


def draw(trial):
    return tabular.draw(trial).change(task="weights")


SPACES = (
    Space(
        name="weighing",
        draw=draw,
        baseline=tabular.draw.baseline,
        plain=tabular.draw.plain,
        summary="a layer of hidden units",
    ),
)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Create a folder of installed packages, one of which has a task."""
    (tmp_path / "weighing.py").write_text(PACKAGE)
    (tmp_path / "tabular.py").write_bytes(TABLE.read_bytes())
    about = tmp_path / "weighing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: weighing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[automl.tasks]\nweights = {REFERENCE}\n")
    (tmp_path / "scale.weights").touch()
    return tmp_path


def run(site: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "automl", *arguments]
    root = Path(automl.__file__).parents[1]
    environment = {"PYTHONPATH": f"{root}:{site}", "PATH": "", "HOME": str(site), "COLUMNS": "200"}
    return subprocess.run(command, env=environment, cwd=site, capture_output=True, text=True, timeout=120)


@pytest.mark.heavy("a package with a task")
def test_the_task_of_an_installed_package_needs_no_registration(site: Path) -> None:
    assert "weighing" in run(site, "spaces").stdout
    done = run(site, "data", "scale.weights")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        f"{'':11}{'train':>12}{'validation':>12}{'test':>12}",
        f"{'things':11}{512:>12}{256:>12}{256:>12}",
    ]
    trained = run(site, "train", "--space", "weighing", "--epochs", "1", "--device", "cpu")
    assert trained.returncode == 0, trained.stderr
    assert "rmse" in trained.stdout


def test_a_broken_package_is_skipped(site: Path) -> None:
    (site / "weighing.py").write_text("import nothing_of_this_name")
    done = run(site, "spaces")
    assert done.returncode == 0
    assert "digits" in done.stdout
    assert "skipped task 'weights': " in done.stderr


def test_a_registered_task_is_known_by_its_name(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr("search.config.tasks._registered", {})
    assert automl.register_task("weights", REFERENCE) == REFERENCE
    model = resolve("tabular:Network")(options={"hidden": 4})
    config = automl.TrialConfig(task="weights", model=model)
    assert config.task == REFERENCE
    assert automl.TrialConfig.from_json(config.to_json()) == config
    assert load_space("weighing").summary == "a layer of hidden units"


@pytest.mark.parametrize(
    ("name", "task", "error"),
    [
        (next(iter(TASKS)), REFERENCE, "no built-in task has; got "),
        ("my:task", REFERENCE, "without colons"),
        ("mine", "nowhere:Task", "nowhere cannot be imported"),
        ("mine", "pathlib:Path", "must have an attribute `spec`"),
    ],
)
def test_invalid_registrations_are_rejected(name: str, task: str, error: str) -> None:
    with pytest.raises(automl.InputError, match=error):
        automl.register_task(name, task)


@pytest.mark.parametrize("name", TASKS)
def test_every_reference_of_a_declaration_can_be_imported(name: str) -> None:
    spec = TASKS[name]
    assert not spec.opens or resolve(spec.task).spec is spec
    assert spec.spaces or not spec.metrics  # the user's own code is its space
    assert bool(spec.detect) == bool(spec.space)
    references = [value for value in vars(spec).values() if isinstance(value, str) and ":" in value]
    assert all(resolve(reference) is not None for reference in references)
    assert not spec.as_text or spec.as_text in TASKS
