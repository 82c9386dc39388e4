"""The packages have general names, so imports of them must come from this repository."""

import ast
import importlib
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
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


def read_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, anywhere in it. A package stands for what it hands on."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for top in {package.partition(".")[0] for package in PACKAGES}
        for path in (ROOT / top).rglob("*.py")
    }
    names = {
        module: [
            (f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name, alias.name)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        for module, path in files.items()
    }

    def find(name: str) -> str | None:
        """Return the module that has a name, which a package may have from another module."""
        if name in files:
            return name
        package, _, attribute = name.rpartition(".")
        if f"{package}.__init__" not in files:
            return package if package in files else None
        exports = {last: whole for whole, last in names[f"{package}.__init__"]}
        return find(exports[attribute]) if attribute in exports else f"{package}.__init__"

    return {
        module: {to for name, _ in names[module] if (to := find(name))}
        for module in files
        if not module.endswith("__init__") or "def " in files[module].read_text()
    }


def test_no_files_or_folders_import_each_other_in_a_circle():
    """So the files of each folder have an order in which every import goes down."""
    folders: dict[str, dict[str, set[str]]] = {}
    for module, imported in read_imports().items():
        for other in imported - {module}:
            # The ground floor of `automl` is below the other packages.
            path, other_path = (name.replace("automl.base.", "base.").split(".") for name in (module, other))
            depth = next(i for i, (a, b) in enumerate(zip(path, other_path, strict=False)) if a != b)
            folder = folders.setdefault(".".join(path[:depth]), {})
            folder.setdefault(path[depth], set()).add(other_path[depth])
    for folder, graph in folders.items():
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            pytest.fail(f"{folder or 'the packages'}: {' imports '.join(error.args[1][::-1])}")
