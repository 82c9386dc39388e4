"""Options in a YAML file."""

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from automl.base.errors import InputError
from automl.cli.command import as_command
from automl.cli.main import app


class Command:
    """Command with every type of option."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.app = typer.Typer()
        self.app.command()(as_command(self.run))

    def run(
        self,
        context: typer.Context,
        files: Annotated[list[Path] | None, typer.Argument()] = None,
        trials: str | None = None,
        max_params: Annotated[float | None, typer.Option("--max-params", "-p")] = None,
        size: int = 32,
        flip: Annotated[bool | None, typer.Option("--flip/--no-flip")] = None,
        label: list[str] | None = None,
        as_json: Annotated[bool, typer.Option("--json")] = False,
    ) -> None:
        self.values = {key: value for key, value in locals().items() if key not in ("self", "context")}

    def __call__(self, *arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(self.app, arguments, catch_exceptions=False, standalone_mode=False)
        assert done.exit_code == 0, done.output
        return self.values


CALLS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "everything": (
        "a.png",
        "b.png",
        "--trials",
        "+2",
        "-p",
        "5e6",
        "--size",
        "8",
        "--flip",
        "--label",
        "a=b",
    ),
    "off": ("--no-flip", "--label", "a=1", "--label", "größe=2"),
}


@pytest.mark.parametrize("arguments", CALLS.values(), ids=CALLS)
def test_saved_file_repeats_the_call(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command, file = Command(), str(tmp_path / "saved.yaml")
    values = command(*arguments, "--json", "--save-config", file)
    assert command("--config", file) == {**values, "as_json": False}, "--json is not saved"


def test_a_list_is_separated_by_commas_where_an_option_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("trials: [ssa, timm:se]\nlabel: [a=b, c=d]\n")
    values = Command()("--config", str(file))
    assert (values["trials"], values["label"]) == ("ssa,timm:se", ["a=b", "c=d"])


def test_command_line_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("trials: 2\nmax_params: 5\nsize:\nlabel: [a=b]\njson: true\n")
    values = Command()("--config", str(file), "--trials", "3", "--label", "c=d")
    assert values == {
        "files": None,
        "trials": "3",
        "max_params": 5.0,
        "size": 32,
        "flip": None,
        "label": ["c=d"],
        "as_json": True,
    }


BAD: dict[str, tuple[str | bytes | None, str]] = {
    "unknown option": ("trails: 3", r"unknown option in .* 'trails'; .*Did you mean 'trials'\?"),
    "no mapping": ("- trials", "for each option"),
    "no YAML": ("{ trials: [", "is not valid YAML"),
    "no text": (b"\xff\xfe\x00", "is not UTF-8 at byte 2"),
    "no file": (None, "cannot be read"),
    "itself": ("config: a.yaml", "unknown option"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD)
def test_invalid_file_is_rejected(content: str | bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        Command()("--config", str(file))


def test_value_of_a_wrong_type_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("epochs: many")
    done = CliRunner().invoke(app, ["search", "--config", str(tmp_path / "bad.yaml")])
    assert done.exit_code == 2
    assert "--epochs" in done.output


def test_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        Command()("--save-config", str(tmp_path / "none" / "saved.yaml"))
