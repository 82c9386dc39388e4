"""Options are declared once: the command line, the API, files of options and the reference page agree."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import pytest
import typer.main
import typer.rich_utils
import yaml
from typer.testing import CliRunner

import automl
from automl.base.options import options_of
from automl.cli.command import COMMON
from automl.cli.main import app
from scripts.site_pages import describe_command

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


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete_and_has_no_gaps(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich leaves out what looks like its markup, such as a unit in brackets."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 400)
    parameters = COMMANDS[command].params
    flag = "--help-all" if any("--help-all" in parameter.opts for parameter in parameters) else "--help"
    shown = " ".join(CliRunner().invoke(app, [command, flag]).output.split())
    assert not re.search(r"\w [,.;:)](?= )|\( ", shown)
    for parameter in (parameter for parameter in parameters if parameter.name != "help_all"):
        assert " ".join((getattr(parameter, "help", None) or "").split()) in shown


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
    command: str, source: type, name: str, kind: Any, default: Any, option: Any, text: str, tmp_path: Path
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
    file = tmp_path / "options.yaml"
    value = [1] if get_args(plain(kind)) else 1
    file.write_text(yaml.safe_dump({key: value}))
    context = typer.Context(COMMANDS[command])
    find_parameter(command, "config").callback(context, None, file)
    assert context.default_map == {name: value}

    row = next(row for row in describe_command(command, COMMANDS[command]).splitlines()
               if row.startswith((f"| `{parameter.opts[0]}`", f"| `{name.upper()}`")))  # fmt: skip
    assert " ".join(text.split()).replace("<", "&lt;") in row

    for keywords, function in FUNCTIONS.items():
        if issubclass(keywords, source) and function.__name__.endswith(f"_{command}"):
            argument = inspect.signature(function).parameters[name]
            field = next(field for field in fields(keywords) if field.name == name)
            assert argument.annotation == field.type
            assert argument.default in (field.default, argument.empty)
            assert default in (field.default, None) or option.cli_default is not ...
            documents = map(inspect.getdoc, (function, keywords, automl.Settings))
            assert text in " ".join(" ".join(map(str, documents)).replace("`", "").split())


@pytest.mark.parametrize("command", SOURCES)
def test_other_options_concern_the_command_alone(command: str) -> None:
    """They print, resume, or lead to another command. All others are declared in a class."""
    declared = {name for source in SOURCES[command] for name, *_ in options_of(source)}
    others = {parameter.name for parameter in COMMANDS[command].params} - declared - {*COMMON}
    assert others <= {"as_json", "dry_run", "resume", "confirm", "top", "init_from", "trust"}
