"""The public API: the names of `automl`, how they are loaded, and what they take."""

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

import automl
from automl.base.errors import InputError
from automl.export.predict import exported_folder
from automl.storage.folder import resolve_search
from tests.helpers.confirm_cases import fake_search

ROOT = Path(automl.__file__).parents[1]
SCREEN = 50  # lines


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new process whose first place for imports is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )


def test_the_table_of_names() -> None:
    assert dir(automl) == sorted(automl.__all__)
    for name in automl.__all__:
        assert callable(getattr(automl, name)), name
    with pytest.raises(AttributeError, match="no attribute 'run_serach'"):
        automl.run_serach  # noqa: B018


def test_the_documentation_lists_every_name_on_a_screen() -> None:
    text = inspect.getdoc(automl) or ""
    listed = re.search(r"Run: .*?(?=\n\s*\n)", text, re.S)
    assert set(re.findall(r"\w+", re.sub(r"(?m)^\s*\w+:", "", listed[0]))) == set(automl.__all__)
    assert len(text.splitlines()) <= SCREEN


def test_importing_it_imports_no_framework(tmp_path: Path) -> None:
    heavy = ("torch", "ray", "optuna", "mlflow", "pandas", "numpy")
    run = python(f"import automl; dir(automl); print([n for n in {heavy} if n in sys.modules])", tmp_path)
    assert (run.stdout, run.stderr) == ("[]\n", "")


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
    with pytest.raises(InputError, match="unknown setting 'trails'"):
        automl.run_search(space="digits", trails=3)
    with pytest.raises(
        InputError, match=r"settings must be given by name, as in run_search\(space='digits'\)"
    ):
        automl.run_search("digits")  # type: ignore[call-arg]


def test_a_result_stands_for_its_search(tmp_path: Path) -> None:
    result = SimpleNamespace(search="mine", storage="elsewhere")
    assert resolve_search(result) == ("mine", "elsewhere")
    assert resolve_search(result, "here") == ("mine", "here")
    assert resolve_search("mine") == ("mine", "searches")
    assert resolve_search("mine", tmp_path) == ("mine", str(tmp_path))
    with pytest.raises(
        InputError, match="a search must be a name or a result, such as that of run_search; got 3"
    ):
        resolve_search(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no search in"):
        resolve_search(None, tmp_path)


def test_a_search_that_was_read_stands_for_itself(tmp_path: Path) -> None:
    fake_search(tmp_path)
    assert resolve_search(automl.load("mine", storage=tmp_path)) == ("mine", str(tmp_path))


def test_an_export_stands_for_its_folder() -> None:
    assert exported_folder("exports/one") == exported_folder(SimpleNamespace(folder=Path("exports/one")))
    with pytest.raises(InputError, match="copy that folder to this machine"):
        exported_folder(SimpleNamespace(folder=SimpleNamespace(address="s3://bucket/one")))


def test_resuming_keeps_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="'epochs' cannot be combined with resume, which keeps the settings"):
        automl.run_search(resume="mine", epochs=3)
    with pytest.raises(InputError, match="no search called 'mine'"):
        automl.run_search(resume="mine", trials="+1")
    with pytest.raises(InputError, match="--resume auto needs the --name"):
        automl.run_search(resume="auto", space="digits")
    with pytest.raises(InputError, match="training 'mine' keeps its configuration and name"):
        automl.run_train(automl.TrialConfig(), resume="mine")
    with pytest.raises(InputError, match="needs a configuration, or resume=NAME"):
        automl.run_train()
    with pytest.raises(InputError, match="with resume give storage alone"):
        automl.run_referee("true {seed}", resume="mine")
