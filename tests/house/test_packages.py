"""The packages have general names, so imports of them must come from this repository."""

import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from search.config import TASKS
from tests.helpers.private_names import OPTUNA, RAY, TORCH

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES, DATA = SETUPTOOLS["packages"], SETUPTOOLS["package-data"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_imported_from_this_repository(package):
    module = importlib.import_module(package)
    assert Path(module.__file__).is_relative_to(ROOT)


def test_every_package_is_listed_and_installed():
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for top in ("attention", "automl", "backbones", "cluster", "search")
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert packages == set(PACKAGES)
    files = {
        file
        for package in PACKAGES
        for file in (ROOT / package.replace(".", "/")).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    folders = {package: ROOT / package.replace(".", "/") for package in DATA}
    installed = [set(folders[package].glob(name)) for package, names in DATA.items() for name in names]
    assert all(installed), "each pattern names files"
    assert files == set().union(*installed)


@pytest.mark.parametrize("package", ["attention", "backbones"])
def test_lazy_names_differ_from_module_names(package):
    """Otherwise importing `package.name` would replace the name with the module."""
    modules = {file.stem for file in (ROOT / package).glob("*.py")}
    module = importlib.import_module(package)
    assert not modules & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_the_core_names_few_tasks():
    """The API and the adapters of training libraries are doors: they name what belongs to one task."""
    folders = {file.parent.name for file in (ROOT / "automl" / "tasks").glob("*/__init__.py")}
    names = "|".join([*folders, *(folder.replace("_", "-") for folder in folders)])
    naming = re.compile(
        rf"automl\.tasks\.({names})\b|\btask\b.*[\"']({names})[\"']|[\"'](\w+-)+({names})[\"']"
    )
    doors = ("automl/integrations/", "automl/__init__.py", *(f"automl/tasks/{f}/" for f in folders))
    lines = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for package in ("attention", "automl", "backbones", "cluster", "search")
        for file in sorted((ROOT / package).rglob("*.py"))
        if not file.relative_to(ROOT).as_posix().startswith(doors)
        for number, line in enumerate(file.read_text().split("\n"), 1)
        if naming.search(line)
    ]
    assert len(lines) < 10, "\n".join(lines)


# Tasks without commands of their own on the command line and in the API.
NAMES = [name.replace("-", "_") for name, spec in TASKS.items() if spec.models or spec.detect]
# Tests of what asks all tasks: their declarations, spaces, configurations, data, studies and commands.
ASKING = (
    "tests/automl/task/test_register_task.py",
    "tests/search/test_space_loading.py",
    "tests/search/test_trial_config.py",
    "tests/automl/tasks/test_tasks.py",
)


@pytest.mark.parametrize(
    "names",
    [",".join(NAMES[::4]), *(pytest.param(name, marks=pytest.mark.slow("another case")) for name in NAMES)],
)
def test_the_rest_works_without_tasks(names: str) -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "without_task.py", names, *ASKING],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]


FILES = {
    "Ray": ("cluster/ray_internals.py", RAY),
    "Optuna": ("search/optuna_internals.py", OPTUNA),
    "PyTorch": ("backbones/torch_internals.py", TORCH),
}


def find_difference(name, parameters=None, attributes=(), constants=(), reader=None):
    """Return how the library differs from a row of its table, or None."""
    try:
        value = pkgutil.resolve_name(name)
        if parameters is not None and list(inspect.signature(value).parameters) != parameters:
            return f"its parameters are {', '.join(inspect.signature(value).parameters)}"
        for attribute in attributes:
            if attribute not in value.__init__.__code__.co_names:
                return f"it has no {attribute}"
        for constant in constants:
            if constant not in value.__code__.co_consts:
                return f"it does not name {constant!r}"
        looked_up = name.replace(":", ".").rpartition(".")[2]
        if reader and looked_up not in inspect.unwrap(pkgutil.resolve_name(reader)).__code__.co_names:
            return f"{reader} does not look it up"
    except (ImportError, AttributeError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, (_, used) in FILES.items() for name in used]
)
def test_library_has_the_private_names_in_use(library, name):
    file, used = FILES[library]
    wrong = find_difference(name, **used[name])
    assert wrong is None, f"{library} changed {name}: see {file} ({wrong})"


# The brackets prevent a match with this file.
OF_RAY = r"ray\.[a-z_.]*_(internal|private)|class[_]cache|tune[_]controller"
OF_TORCH = r"torch\.([a-z_]+\.)*_[a-z]|from torch\._|import _BatchNorm"
OF_OPTUNA = r"\._(storage|study_id|trial_id|backend|contains|suggest)\b"


@pytest.mark.parametrize(
    ("library", "pattern", "where"),
    [
        ("Ray", OF_RAY, [".", ":!tests/helpers/private_names.py"]),
        ("PyTorch", OF_TORCH, ["attention/", "backbones/", "search/", "automl/"]),
        ("Optuna", OF_OPTUNA, ["search/", "automl/search/", "automl/callbacks/", "benchmarks/"]),
    ],
)
def test_private_names_of_a_library_are_used_in_one_file(library, pattern, where):
    result = subprocess.run(
        ["git", "grep", "-lE", pattern, "--", *where], cwd=ROOT, capture_output=True, text=True
    )
    assert result.stdout.split() == [FILES[library][0]]
