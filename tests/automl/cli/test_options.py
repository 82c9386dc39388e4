"""Options of the commands, in Python, on the command line and in files."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from types import UnionType
from typing import Any, get_args

import pytest
import typer
import typer.main
import typer.rich_utils
from typer.testing import CliRunner

import automl
from automl.base.options import options_of
from automl.cli.command import as_command
from automl.cli.main import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# Classes that declare options, by command.
SOURCES: dict[str, tuple[type, ...]] = {
    name: callback.options
    for name, callback in zip(COMMANDS, [info.callback for info in app.registered_commands], strict=True)
    if hasattr(callback, "options")
}
# Functions whose arguments such a class gives.
FUNCTIONS: dict[type, Any] = {
    function.arguments: function
    for function in (getattr(automl, name) for name in automl.__all__)
    if hasattr(function, "arguments")
}


def declarations() -> Iterator[Any]:
    for command, sources in SOURCES.items():
        for source in sources:
            for declaration in options_of(source):
                yield pytest.param(command, source, *declaration, id=f"{command}-{declaration[0]}")


def find_parameter(command: str, name: str) -> Any:
    return next(parameter for parameter in COMMANDS[command].params if parameter.name == name)


def plain(kind: Any) -> Any:
    """Return a type without None."""
    inner = [choice for choice in get_args(kind) if choice is not type(None)]
    return inner[0] if isinstance(kind, UnionType) and len(inner) == 1 else kind


def test_commands_and_functions_with_declared_options() -> None:
    assert {"search", "train", "confirm", "compare", "referee", "study"} <= SOURCES.keys()
    for name in SOURCES.keys() - {"train"}:
        assert getattr(automl, f"run_{name}") in FUNCTIONS.values()
    settings = {name for source in SOURCES["search"] for name, *_ in options_of(source)}
    assert {field.name for field in fields(automl.Settings)} - settings == {"weights_digest", "study"}
    for source, function in FUNCTIONS.items():
        arguments = [field.name for field in fields(source)]
        assert sorted(inspect.signature(function).parameters) == sorted(arguments)


@pytest.mark.parametrize(("command", "source", "name", "kind", "default", "option", "text"), declarations())
def test_an_option_is_the_same_everywhere(
    command: str, source: type, name: str, kind: Any, default: Any, option: Any, text: str
) -> None:
    parameter = find_parameter(command, name)
    assert parameter.help == text
    if option.argument:
        assert parameter.required
    else:
        assert parameter.default == default
    assert plain(parameter.type_descriptor.annotation) == plain(kind)

    key = parameter.opts[0].lstrip("-")
    assert key == (option.flags[0].partition("/")[0] if option.flags else name).lstrip("-").replace("_", "-")

    for keywords, function in FUNCTIONS.items():
        if issubclass(keywords, source) and function.__name__.endswith(f"_{command}"):
            argument = inspect.signature(function).parameters[name]
            field = next(field for field in fields(keywords) if field.name == name)
            assert argument.annotation == field.type
            assert argument.default in (field.default, argument.empty)
            assert default in (field.default, None) or option.cli_default is not ...


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


def test_values_of_a_file_are_read_and_rejected(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("trials: [ssa, timm:se]\nlabel: [a=b, c=d]\n")
    values = Command()("--config", str(file))
    assert (values["trials"], values["label"]) == ("ssa,timm:se", ["a=b", "c=d"])
    (tmp_path / "bad.yaml").write_text("epochs: many")
    done = CliRunner().invoke(app, ["search", "--config", str(tmp_path / "bad.yaml")])
    assert done.exit_code == 2
    assert "--epochs" in done.output
    with pytest.raises(InputError, match="cannot be written"):
        Command()("--save-config", str(tmp_path / "none" / "saved.yaml"))


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
