"""Every way to start a program of this project, in a folder whose files have the names of all modules."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import typer.main

from automl.base.errors import InputError
from automl.cli.main import app, main
from tests.helpers import others_slow
from tests.helpers.planted_modules import plant_modules

ROOT = Path(__file__).parents[3]
PACKAGES = ("attention", "automl", "backbones", "cluster", "search")
SCRIPTS = distribution("attention-automl").entry_points.select(group="console_scripts")
FILES = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
MAINS = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for file in FILES
    if file.name == "__main__.py" or re.search("^if .*__name__ .*__main__", file.read_text(), re.M)
]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PROGRAMS = [[str(Path(sys.executable).with_name(script.name))] for script in SCRIPTS]
PROGRAMS += [[sys.executable, "-m", name] for name in MAINS]


def name_of(program: list[str]) -> str:
    """Return the name of a case, which is equal on every machine."""
    return " ".join(Path(part).name for part in program)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant_modules(tmp_path_factory.mktemp("planted") / "which have run")


@pytest.mark.parametrize("program", others_slow(PROGRAMS, PROGRAMS[0]), ids=name_of)
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
        assert "Usage: python -m automl search [OPTIONS]" in out or program[-1] != "automl.search"
    else:
        assert program[-1].startswith(("automl.tracking.", "automl.trials."))


@pytest.mark.parametrize("words", [["run.py"], ["-m", "run"]], ids=" ".join)
def test_a_script_keeps_its_path(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import automl, sys\nprint(sys.path[0])")
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{tmp_path}\n", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_an_empty_text_a_pipe_or_a_device(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    valued = [each for each in COMMANDS[name].params if not getattr(each, "is_flag", False)]
    for target in (each for each in valued if each.name != "same"):  # the name of a search
        refused = {"pipe": "is a pipe", "/dev/zero": "is a pipe"} if _is_text(target) else {}
        for value, message in (refused | ({"": "not be empty"} if target.default != "" else {})).items():
            words = [value if each is target else "x" for each in valued if each.required or each is target]
            if target.opts[0].startswith("-"):
                words = [f"{target.opts[0]}={value}", *(word for word in words if word is not value)]
            with pytest.raises(InputError, match=message):
                COMMANDS[name].main(words, standalone_mode=False)


def _is_text(parameter: Any) -> bool:
    return any(kind in repr(parameter.type_descriptor.annotation) for kind in ("str", "Path"))


def test_it_prints_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    program = typer.Typer()

    @program.command()
    def train() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation")

    with pytest.raises(SystemExit) as ended:
        main([], program)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: CUDA out of memory. Tried to allocate 2.00 GiB. Lower --batch-size")
