"""The packages have general names, so imports of them must come from this repository."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES, DATA = SETUPTOOLS["packages"], SETUPTOOLS["package-data"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_imported_from_this_repository(package):
    module = importlib.import_module(package)
    assert Path(module.__file__).is_relative_to(ROOT)


def test_every_package_is_listed():
    packages = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for top in ("attention", "automl", "backbones", "cluster", "search")
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert packages == set(PACKAGES)


def test_every_file_beside_the_code_is_installed_with_it():
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


@pytest.mark.parametrize("package", sorted(set(PACKAGES) - {"automl"}))  # whose names are its API
def test_a_package_lists_its_modules(package):
    folder = ROOT / package.replace(".", "/")
    contents = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    listed = set(re.findall(r"^(\w+)  +\S", contents, re.M))
    modules = {file.stem for file in folder.glob("*.py")}
    modules |= {file.parent.name for file in folder.glob("*/__init__.py")}
    assert listed - {"__main__"} == modules - {"__init__", "__main__"}


@pytest.mark.parametrize("package", ["attention", "backbones"])
def test_lazy_names_differ_from_module_names(package):
    """Otherwise importing `package.name` would replace the name with the module."""
    modules = {file.stem for file in (ROOT / package).glob("*.py")}
    module = importlib.import_module(package)
    assert not modules & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_few_lines_of_the_core_name_a_task():
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
