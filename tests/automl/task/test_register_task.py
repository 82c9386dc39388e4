"""Tasks of installed packages are like built-in ones, and registered tasks are known by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import automl
from automl.base import lazy
from automl.base.lazy import resolve
from automl.cli.main import app
from automl.data.download import published_datasets
from automl.search.studies import list_studies
from automl.task import task_of
from backbones import BACKBONES
from search import space as spaces
from search.config import TASKS
from search.space import SPACES, load_space, study_grids
from tests.helpers import FOLDER

TABLE = FOLDER / "tabular.py"
REFERENCE = "weighing.task:Weighing"

SPEC = """
from dataclasses import replace

import tabular

SPEC = replace(
    tabular.Weights.spec,
    task="weighing.task:Weighing",
    detect="weighing.task:is_table",
    nearly="weighing.task:nearly_table",
    space="weighing",
    spaces=("weighing.task",),
    overview="weighing.task:Overview",
    published="weighing.task:DATASETS",
    backbones="weighing.task:BACKBONES",
    models="weighing.task:MODELS",
    subject="weighing.task:subject",
    studies="weighing.task:STUDIES",
    grids="weighing.task:GRIDS",
)
"""
TASK = """
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

import tabular
import weighing
from automl.data.download import PublishedDataset, Remote
from automl.task.published_study import Row, Study
from automl.task.subject import Subject
from backbones import Backbone
from backbones.example import sum_outputs
from search.grid import grid
from search.space import Space


class Weighing(tabular.Weights):
    spec = weighing.SPEC


def is_table(path):
    return Path(path).suffix == ".weights"


def nearly_table(folder):
    if (folder / "weights.txt").exists():
        yield "has weights.txt, which must be weights.weights"


@dataclass(frozen=True)
class Overview:
    path: str

    def lines(self):
        yield f"{self.path} has weights"


def draw(trial):
    return tabular.draw(trial).change(task="weights")


def one(trial):
    hidden = trial.suggest_categorical("hidden", [4, 8])
    return draw(trial).change(model={"options": {"hidden": hidden, "products": False}})


def subject(backbone, size, options):
    return Subject(
        name=backbone,
        build=partial(tabular.Products, 4, False),
        example=lambda count: torch.zeros(count, tabular.COLUMNS),
        loss=sum_outputs,
        description="four measures",
    )


SPACES = (
    Space(
        name="weighing",
        draw=draw,
        baseline=tabular.draw.baseline,
        plain=tabular.draw.plain,
        summary="a layer of hidden units",
    ),
)
GRIDS = (grid("units", one, {"hidden": 4}),)
STUDIES = (
    Study(name="units", summary="units", source="a scale", columns={}, setup={}, rows=[Row(name="4")]),
)
DATASETS = (
    PublishedDataset(
        name="scales", about="weights", files=[Remote(address="https://example.org/a")], key="scales",
        space="weighing", license="CC0", source="example.org",
    ),
)
MODELS = {"mlp": Backbone(name="mlp", build=tabular.Products, dimensions=0, source="a scale")}
BACKBONES = {"tiny": Backbone(name="tiny", build=nn.Identity, dimensions=2, source="a scale")}
"""


def forget() -> None:
    """Forget all tasks of installed packages."""
    for cached in (lazy.installed_tasks, lazy.declaration, lazy._skip, published_datasets, study_grids):
        cached.cache_clear()
    for table in (SPACES, BACKBONES):
        vars(table).pop("_records", None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with a task."""
    (tmp_path / "weighing").mkdir()
    (tmp_path / "weighing" / "__init__.py").write_text(SPEC)
    (tmp_path / "weighing" / "task.py").write_text(TASK)
    (tmp_path / "tabular.py").write_bytes(TABLE.read_bytes())
    install(tmp_path, "weighing", "weights = weighing")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    forget()
    yield tmp_path
    forget()
    for name in ("weighing", "weighing.task", "tabular"):
        sys.modules.pop(name, None)


def install(site: Path, package: str, entry: str) -> None:
    about = site / f"{package}-1.0.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[automl.tasks]\n{entry}\n")


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.heavy("a package with a task")
def test_the_task_of_an_installed_package_is_like_a_built_in_one(site: Path) -> None:
    assert TASKS["weights"].task == REFERENCE
    assert "weights" in [*TASKS]
    assert "a layer of hidden units" in run("spaces")
    assert "units" in run("studies")
    assert "scales" in run("data", "--list")
    assert "four measures" in run("cost", "mlp")
    assert list_studies()["units"].source == "a scale"
    assert load_space("units").name == "units"
    assert BACKBONES["tiny"].source == "a scale"
    (site / "scale.weights").touch()
    assert run("data", "scale.weights").startswith("scale.weights has weights\nnext ")
    (site / "photos").mkdir()
    (site / "photos" / "weights.txt").touch()
    with pytest.raises(automl.InputError, match=r"must be weights\.weights"):
        automl.describe_data("photos")
    assert "rmse" in run("train", "--space", "weighing", "--epochs", "1", "--device", "cpu")
    config = automl.TrialConfig(task="weights", model=resolve("tabular:Network")(options={"hidden": 4}))
    assert config.task == "weights"
    assert automl.TrialConfig.from_json(config.to_json()) == config
    assert task_of(config) is resolve(REFERENCE)


def test_an_entry_point_may_name_the_class_of_a_task(site: Path) -> None:
    install(site, "weighing", "weights = tabular:Weights")
    assert TASKS["weights"].task == "tabular:Weights"
    assert TASKS["weights"].metric("").name == "rmse"


def test_two_packages_with_a_task_of_one_name_are_named(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "balance", "weights = balance")
    assert "weights" in TASKS
    assert "1.0 has a task of this name; uninstall one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entry", "source", "message"),
    [
        (
            "weights = weighing",
            "import nothing_of_this_name",
            "weighing cannot be imported: ModuleNotFoundError",
        ),
        ("weights = weighing:SPEC", SPEC.replace("weighing.task", "weighing.nothing"), "weighing.nothing"),
        (f"{next(iter(TASKS))} = weighing", SPEC, "that no built-in task has"),
    ],
)
def test_a_broken_package_is_skipped_and_named(
    site: Path, entry: str, source: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "weighing", entry)
    (site / "weighing" / "__init__.py").write_text(source)
    (site / "photos").mkdir()
    for _ in range(2):
        assert "digits" in SPACES
        assert "xresnet18" in [*BACKBONES]
        assert min(len(list_studies()), len(published_datasets()), len(study_grids())) > 1
        assert automl.task.task_of_data("photos") is None
    error = capsys.readouterr().err
    assert f"skipped task {entry.split()[0]!r} of weighing 1.0: " in error
    assert message in error
    assert len({*error.splitlines()}) == len(error.splitlines()), "each message once"


def test_a_registered_task_is_known_by_its_name(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.config.tasks._registered", {})
    assert automl.register_task("kilograms", REFERENCE) == REFERENCE
    config = automl.TrialConfig(task="kilograms", model=resolve("tabular:Network")(options={"hidden": 4}))
    assert config.task == REFERENCE
    assert automl.TrialConfig.from_json(config.to_json()) == config
    assert spaces.registered_spaces()["weighing"].summary == "a layer of hidden units"


@pytest.mark.parametrize("name", TASKS)
def test_every_reference_of_a_declaration_can_be_imported(name: str) -> None:
    spec = TASKS[name]
    assert not spec.task or resolve(spec.task).spec is spec
    assert spec.spaces or not spec.metrics  # the user's own code is its space
    assert bool(spec.detect) == bool(spec.space)
    references = [value for value in vars(spec).values() if isinstance(value, str) and ":" in value]
    assert all(resolve(reference) is not None for reference in references)
    assert spec.as_text in ("", *TASKS, "language-modelling")  # which a copy may lack
