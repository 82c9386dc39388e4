"""Files of one's own: what they import beside them, and how other machines get them."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from attention import InputError
from backbones import loading


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A file that imports some of what lies beside it."""
    files = {
        "net.py": "import torch\nimport layers\nfrom parts import blocks\n\n\ndef make():\n    import late\n"
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


def test_code_is_the_file_and_what_it_imports_beside_it(project: Path) -> None:
    found = loading.code(f"{project}/net.py:make")
    names = {str(Path(path).relative_to(project)) for path in found}
    assert names == {
        "net.py", "layers.py", "late.py", "parts/__init__.py", "parts/blocks.py", "parts/more.py",
    }  # fmt: skip
    assert all(Path(path).read_bytes() == content for path, content in found.items())


@pytest.mark.parametrize("name", ["xresnet18", "torchvision:resnet18", "package.module:Net"])
def test_what_is_no_file_has_no_code(name: str) -> None:
    assert loading.code(name) == {}
    assert loading.digest({}) == ""


def test_the_digest_is_of_content_wherever_it_lies(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = loading.digest(loading.code(f"{project}/net.py:make"))
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    project.rename(moved)
    assert loading.digest(loading.code(f"{moved}/net.py:make")) == before
    (moved / "other.py").write_text("changed = True\n")
    assert loading.digest(loading.code(f"{moved}/net.py:make")) == before
    (moved / "parts" / "more.py").write_text("NAME = 'less '\n")
    assert loading.digest(loading.code(f"{moved}/net.py:make")) != before


PROGRAM = """
import pickle, sys
from backbones import loading
name, files = pickle.load(sys.stdin.buffer)
loading.receive(files)
print(loading.load_object("backbone", "function", name, ())())
print(loading.digest(loading.code(name)))
"""


def test_another_machine_runs_it_as_it_was_here(project: Path) -> None:
    """Which has no such files, or others."""
    name = f"{project}/net.py:make"
    files = loading.code(name)
    (project / "layers.py").write_text("NAME = 'another '\n")
    (project / "parts" / "blocks.py").unlink()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=pickle.dumps((name, files)), capture_output=True, check=True
    )
    assert done.stdout.decode().split("\n")[:2] == ["layers more late", loading.digest(files)]


def test_files_that_are_here_are_used_themselves(project: Path) -> None:
    loading.receive(loading.code(f"{project}/net.py:make"))
    assert loading.load_file(f"{project}/net.py").__file__ == f"{project}/net.py"


def test_mistakes_in_a_file_are_told(project: Path) -> None:
    (project / "layers.py").write_text("def broken(:\n")
    with pytest.raises(InputError, match=r"layers\.py, line 1, is no Python: invalid syntax"):
        loading.code(f"{project}/net.py:make")
    with pytest.raises(InputError, match=r"there is no file gone\.py"):
        loading.code("gone.py:make")
