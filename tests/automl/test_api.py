"""The public API: the names of `automl`, how they are loaded, and what they take."""

import inspect
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient

import automl
import automl.trials.session
from automl.base.errors import InputError
from automl.export.predict import exported_folder
from automl.storage.folder import resolve_search
from tests.helpers.api_cases import run_examples
from tests.helpers.confirm_cases import FakeCommands, fake_search

ROOT = Path(automl.__file__).parents[1]


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process whose first place for imports is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )


def test_the_table_of_names_is_whole_and_light(tmp_path: Path) -> None:
    assert dir(automl) == sorted(automl.__all__)
    for name in automl.__all__:
        assert callable(getattr(automl, name)), name
    with pytest.raises(AttributeError, match="no attribute 'run_serach'"):
        automl.run_serach  # noqa: B018
    heavy = ("torch", "ray", "optuna", "mlflow", "pandas", "numpy")
    run = python(f"import automl; dir(automl); print([n for n in {heavy} if n in sys.modules])", tmp_path)
    assert (run.stdout, run.stderr) == ("[]\n", "")


@pytest.mark.slow("imports Ray and torch")
@pytest.mark.parametrize("module", ["automl.search.driver", "automl.trials.trial"])
def test_a_search_starts_without_imports_of_seconds(module: str, tmp_path: Path) -> None:
    models = "[build(name, classes=2) for name in ('xresnet18', 'small-resnet')]"
    seen = "print([n for n in ('torchvision', 'mlflow', 'sklearn') if n in sys.modules])"
    run = python(f"import {module}; from backbones import build; {models}; {seen}", tmp_path)
    assert run.stdout == "[]\n", run.stderr


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("attention", "attention/__init__.py"),
        ("backbones", "backbones.py"),
        ("cluster", "cluster/__init__.py"),
        ("search", "search.py"),
    ],
)
def test_a_foreign_package_of_the_same_name_is_refused(name: str, file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('it was run')")
    run = python("import automl", tmp_path)
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: automl needs its own package '{name}' in {ROOT}, but Python finds ")
    assert f"{tmp_path / file} first. Rename or move that file" in last


def test_a_search_takes_the_settings_as_keywords() -> None:
    parameters = inspect.signature(automl.run_search).parameters
    assert list(parameters) == [*(field.name for field in fields(automl.Settings)), "resume"]
    assert parameters["trials"].default is None


def test_results_stand_for_searches_and_folders(tmp_path: Path) -> None:
    result = SimpleNamespace(search="mine", storage="elsewhere")
    assert resolve_search(result) == ("mine", "elsewhere")
    assert resolve_search(result, "here") == ("mine", "here")
    assert resolve_search("mine") == ("mine", "searches")
    assert resolve_search("mine", tmp_path) == ("mine", str(tmp_path))
    message = "a search must be a name or a result, such as that of run_search; got 3"
    with pytest.raises(InputError, match=message):
        resolve_search(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no search in"):
        resolve_search(None, tmp_path)
    fake_search(tmp_path)
    assert resolve_search(automl.load("mine", storage=tmp_path)) == ("mine", str(tmp_path))
    assert exported_folder("exports/one") == exported_folder(SimpleNamespace(folder=Path("exports/one")))


def test_resuming_keeps_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'epochs' cannot be combined with resume, which keeps the settings"):
        automl.run_search(resume="mine", epochs=3)
    with pytest.raises(InputError, match="no search called 'mine'"):
        automl.run_search(resume="mine", trials="+1")


# The examples that need a search, in an order in which they can follow each other.
SEARCH = [
    "run_search", "Search", "load",
    "run_confirm", "ConfirmResult", "Verdict",
    "run_solve", "read_status", "list_searches", "run_sync",
]  # fmt: skip
MODEL = [
    "run_report", "ReportResult", "run_export", "ExportResult", "run_predict", "Prediction", "Predictions",
    "preview_search",
]  # fmt: skip
TRAIN = ["run_train", "TrainResult"]
STUDY = ["run_study", "StudyResult"]
REFEREE = ["run_referee", "run_ledger", "LedgerResult"]
CODE = ["run_code_search", "CodeSearch"]  # see tests/automl/tasks/code_retrieval/test_code_export.py
SEPARATE = {"describe_data", *SEARCH, *MODEL, *CODE, *TRAIN, *STUDY, *REFEREE}


@pytest.mark.parametrize("name", sorted(set(automl.__all__) - SEPARATE))
def test_the_example_runs(name: str) -> None:
    run_examples([name])


def test_the_examples_of_a_referee_run(played: None, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = FakeCommands(lambda variant, seed: seed % 7 + (variant == "candidate"))
    monkeypatch.setattr(automl.trials.session, "open_workers", workers.open)
    run_examples(REFEREE)


def test_the_examples_of_a_training_run(store: MlflowClient) -> None:
    run_examples(TRAIN)


def test_the_example_of_a_dataset_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(["describe_data"])


@pytest.mark.slow("the same with trained models, and what needs one")
@pytest.mark.timeout(900)
def test_all_examples_of_a_search_run(store: MlflowClient) -> None:
    shutil.copy(ROOT / "docs" / "seven.png", ".")
    run_examples([*SEARCH[:-2], *MODEL, *SEARCH[-2:]])
    run_examples(STUDY)
