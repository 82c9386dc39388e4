"""Files of the user: what they import, and how other machines get them."""

import pickle
import shutil
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

import automl
from automl.base import live_objects, loading
from automl.base.errors import OWN_PACKAGES, InputError
from backbones.libraries import LIBRARIES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with a file that imports some of the files beside it."""
    files = {
        "net.py": "import json\nimport layers\nfrom parts import blocks\n\n\ndef make():\n    import late\n"
        "    return layers.NAME + blocks.NAME + late.NAME\n",
        "layers.py": "NAME = 'layers '\n",
        "late.py": "NAME = 'late'\n",
        "other.py": "NAME = 'not imported'\n",
        "parts/__init__.py": "",
        "parts/blocks.py": "from . import more\nfrom .more import NAME\n",
        "parts/more.py": "NAME = 'more '\n",
        "parts/unused.py": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_code_is_the_file_and_its_imports(project: Path) -> None:
    files = loading.code(f"{project}/net.py:make")
    names = {str(Path(path).relative_to(project)) for path in files}
    assert names == {
        "net.py", "layers.py", "late.py", "parts/__init__.py", "parts/blocks.py", "parts/more.py",
    }  # fmt: skip
    assert all(Path(path).read_bytes() == content for path, content in files.items())
    loading.receive(loading.code(f"{project}/net.py:make"))
    assert loading.load_file(f"{project}/net.py").__file__ == f"{project}/net.py"
    assert {*loading.LIBRARIES} == {*LIBRARIES, "hf"}  # whose models are decoders


def test_a_file_in_the_folder_of_a_job_keeps_its_name(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is submitted again names the same file, and runs in another folder."""
    name = "net.py:make"
    monkeypatch.chdir(project)
    assert loading.make_absolute(name) == f"{project}/{name}"
    for session in ("1", "2"):
        folder = project / session / "working_dir_files" / "_ray_pkg_1"
        shutil.copytree(project, folder, ignore=shutil.ignore_patterns("1", "2"))
        monkeypatch.chdir(folder)
        assert loading.make_absolute(name) == name
        assert {*loading.code(name)} >= {f"{folder}/net.py", f"{folder}/layers.py"}
        loaded = loading.load_object("space", "function", name, ())
        assert loaded is loading.get_loaded_object(name)


def test_the_digest_does_not_depend_on_the_folder(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = loading.hash_files(loading.code(f"{project}/net.py:make"))
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    project.rename(moved)
    assert loading.hash_files(loading.code(f"{moved}/net.py:make")) == before
    (moved / "other.py").write_text("changed = True\n")
    assert loading.hash_files(loading.code(f"{moved}/net.py:make")) == before
    (moved / "parts" / "more.py").write_text("NAME = 'less '\n")
    assert loading.hash_files(loading.code(f"{moved}/net.py:make")) != before


PROGRAM = """
import pickle, sys
from automl.base import loading
name, files = pickle.load(sys.stdin.buffer)
loading.receive(files)
print(loading.load_object("backbone", "function", name, ())())
print(loading.hash_files(loading.code(name)))
"""


def test_another_machine_runs_the_received_files(project: Path) -> None:
    """The other machine has no such files, or other ones."""
    name = f"{project}/net.py:make"
    files = loading.code(name)
    (project / "layers.py").write_text("NAME = 'another '\n")
    (project / "parts" / "blocks.py").unlink()
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps((name, files)), capture_output=True, check=True
    )
    assert process.stdout.decode().split("\n")[:2] == ["layers more late", loading.hash_files(files)]


def test_files_of_several_folders_are_loaded_and_sent(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "net.py").write_text("import helper\n\ndef make():\n    return helper.NAME\n")
        (tmp_path / kind / "helper.py").write_text(f"NAME = '{kind}'\n")
    names = [f"{tmp_path}/{kind}/net.py:make" for kind in ("a", "b")]
    assert [loading.load_object("backbone", "function", name, ())() for name in names] == ["a", "b"]
    files = {f"{tmp_path}/a/one.py": b"def make():\n    return 1\n", f"{tmp_path}/b/two.py": b""}
    loading.receive(files)
    assert loading.load_object("task", "Class", f"{tmp_path}/a/one.py:make", ())() == 1


def test_code_changes_only_when_it_is_read_again(project: Path) -> None:
    name = f"{project}/net.py:make"
    assert loading.load_object("backbone", "function", name, ())() == "layers more late"
    (project / "layers.py").write_text("NAME = 'other layers '\n")
    assert loading.load_object("backbone", "function", name, ())() == "other layers more late"
    loading.freeze_code(name)
    before = loading.hash_code(name)
    (project / "layers.py").write_text("NAME = 'edited '\n")
    assert loading.hash_code(name) == before
    loading.freeze_code(name)
    assert loading.hash_code(name) != before
    code_hash = loading.hash_code(name)
    assert loading.find_local_name("/gone/net.py:make", code_hash) == name
    assert loading.find_local_name("/gone/net.py:make", "another") == "/gone/net.py:make"
    assert loading.find_local_name("/gone/net.py:other", code_hash) == "/gone/net.py:other"
    assert loading.find_local_name("xresnet18", "") == "xresnet18"


def test_imports_that_are_relative_or_wrong_are_reported(project: Path) -> None:
    (project / "parts" / "blocks.py").write_text("from .attention import NAME\nfrom .. import above\n")
    (project / "parts" / "attention.py").write_text("NAME = ''\n")
    (project.parent / "above.py").write_text("")
    names = {Path(path).name for path in loading.code(f"{project}/net.py:make")}
    assert "attention.py" in names
    (project / "net.py").write_text("from .. import above\nfrom ... import further\n")
    assert {Path(path).name for path in loading.code(f"{project}/net.py:make")} == {"net.py"}
    (project / "net.py").write_text("import layers\n")
    (project / "layers.py").write_text("def broken(:\n")
    with pytest.raises(InputError, match=r"layers\.py, line 1, is no Python: invalid syntax"):
        loading.code(f"{project}/net.py:make")
    with pytest.raises(InputError, match=r"there is no file gone\.py"):
        loading.code("gone.py:make")


@pytest.mark.parametrize("name", [*OWN_PACKAGES, "test", "array"])
def test_file_with_the_name_of_a_package_is_refused_where_it_is_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(f"import {name}\n\ndef make():\n    return 'mine'\n")
    (tmp_path / "net.py").write_text(f"from {name} import make")
    with pytest.raises(InputError, match=rf"imports '{name}', which is not {name}\.py .* Rename {name}\.py"):
        loading.load_file(f"{tmp_path}/net.py")
    # It may be named itself, and use the package.
    assert loading.load_object("model", "function", f"{tmp_path}/{name}.py:make", ())() == "mine"


RUNS = [name for name in automl.__all__ if name.startswith(("run_", "resume_"))]
PARSES = "import argparse\nparser = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *(
            (f"import automl\nautoml.{name}()", f"net\\.py calls automl\\.{name} when .* `if __name__ == ")
            for name in RUNS
        ),
        ("import sys\nsys.exit(0)", r"SystemExit: 0 \(net\.py, line 2\)\. Put .* below `if __name__ == "),
        (
            f"{PARSES}parser.add_argument('--a', required=True)\nparser.parse_args()",
            r"required: --a .*line 4",
        ),
        ("from .layers import NAME", r"net\.py, line 1\)\. Name .* by its package: \w+\.net:make in /"),
    ],
)
def test_file_that_cannot_be_imported_says_why(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "layers.py").write_text("NAME = 1")
    (tmp_path / "net.py").write_text(f"{content}\n\ndef make():\n    pass\n")
    with pytest.raises(InputError, match=reason):
        loading.load_object("model", "function", f"{tmp_path}/net.py:make", ())


def test_import_hides_the_arguments_of_this_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["automl", "search", "--trials", "2"])
    lines = f"{PARSES}parser.add_argument('--trials', type=int)\nTRIALS = parser.parse_args().trials\n"
    (tmp_path / "net.py").write_text(lines)
    assert loading.load_file(f"{tmp_path}/net.py").TRIALS is None
    assert sys.argv[1] == "search"


def test_spawned_processes_get_objects_of_files_of_the_user(project: Path) -> None:
    (project / "layers.py").write_text("NAME = 'layers '\n\nclass Rows:\n    class Inner:\n        pass\n")
    (project / "net.py").write_text("import layers\n\nclass Net:\n    pass\n\ndef collate(rows):\n    pass\n")
    net = loading.load_file(f"{project}/net.py")
    loading.send_own_objects()
    content = ForkingPickler.dumps([net.Net(), net.collate, net.layers.Rows.Inner()])
    names = "[getattr(each, '__name__', type(each).__name__) for each in pickle.load(sys.stdin.buffer)]"
    code = f"import pickle, sys; print({names})"
    process = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, check=True)
    assert process.stdout.decode().strip() == "['Net', 'collate', 'Inner']"


CELLS = """
import sys
from functools import cache

SCALE = 3

@cache
def table():
    return [SCALE]

def train(value):
    return table()[0] * value
"""


def run(*lines: str) -> str:
    """Run lines after the cells as a process without a file, as a notebook is."""
    code = CELLS + "\n".join(("from automl.base import live_objects, loading", *lines))
    result = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_function_of_a_notebook_travels_with_what_it_uses(tmp_path: Path) -> None:
    file = tmp_path / "packed"
    printed = run(
        "name = live_objects.name_of(train)",
        f"open({str(file)!r}, 'wb').write(loading.code(name)[name])",
        "print(name, loading.hash_code(name))",
    )
    name, digest = printed.split()
    assert name == "__main__:train"
    loading.receive({name: file.read_bytes()})
    try:
        assert loading.load_object("training function", "function", name, [])(2) == 6
        assert loading.hash_code(name) == digest
    finally:
        live_objects._received.clear()


def test_functions_of_a_notebook_have_a_name_and_a_hash() -> None:
    hashes = "print(loading.hash_code('__main__:train'))"
    assert len(set(run(hashes, "train = lambda value: value", hashes).split())) == 2
    assert run(hashes) == run(hashes)
    changed = "table = cache(lambda: [4])"
    assert len(set(run(hashes, changed, hashes).split())) == 2
    assert live_objects.name_of(run) == f"{Path(__file__).resolve()}:run"
    assert live_objects.name_of(loading.load_file) == "automl.base.loading:load_file"
    with pytest.raises(InputError, match="at the top level of its file or notebook"):
        live_objects.name_of(lambda trial: None)
    with pytest.raises(InputError, match="run the cell that defines it"):
        loading.code("__main__:absent")
    freeze = "loading.freeze_code('__main__:train')"
    lines = (freeze, "code = loading.code('__main__:train')", "SCALE = 5")
    assert run(*lines, "print(loading.code('__main__:train') is code)") == "True"
    assert run(*lines, freeze, "print(loading.code('__main__:train') == code)") == "False"
