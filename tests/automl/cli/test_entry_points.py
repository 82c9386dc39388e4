"""Every way to start a program of this project, in a folder whose files have the names of all modules."""

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from planted_modules import plant_modules

ROOT = Path(__file__).parents[3]
PACKAGES = ("attention", "automl", "backbones", "cluster", "search")
SCRIPTS = distribution("attention-automl").entry_points.select(group="console_scripts")
FILES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
MAINS = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for file in FILES
    if file.name == "__main__.py" or re.search("^if .*__name__ .*__main__", file.read_text(), re.M)
]
PROGRAMS = [[str(Path(sys.executable).with_name(script.name))] for script in SCRIPTS]
PROGRAMS += [[sys.executable, "-m", name] for name in MAINS]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_modules(tmp_path_factory.mktemp("planted") / "which have run")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program[-1])
def test_no_file_of_the_current_folder_is_imported(program: list[str], planted: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*program, "--help"], cwd=planted.parent, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        process.wait(60)  # `attended` ends with its standard input
        out, err = process.communicate()
    assert not planted.exists(), planted.read_text()
    if "Usage" in out:  # else it is a part of another program
        assert (process.returncode, err) == (0, "")
    else:
        assert program[-1].startswith(("automl.tracking.", "automl.trials."))


@pytest.mark.parametrize("words", [["run.py"], ["-m", "run"]], ids=" ".join)
def test_a_script_keeps_its_path(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import automl, sys\nprint(sys.path[0])")
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "")
