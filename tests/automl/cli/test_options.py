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

import automl
from automl.base.options import options_of
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
    assert {"search", "train", "confirm", "referee", "study"} <= SOURCES.keys()
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
