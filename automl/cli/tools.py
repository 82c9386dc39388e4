"""Tools for agents: their schemas and command lines, from the options of the commands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from automl.base.errors import InputError, unknown
from automl.cli.command import COMMON

# The commands of the tools, and an option that each call has.
TOOLS: dict[str, tuple[str, str | None]] = {
    "referee": ("referee", None),
    "noise": ("referee", "noise"),
    "ledger": ("ledger", None),
    "search": ("search", None),
    "status": ("status", None),
    "report": ("report", None),
    "solve": ("solve", None),
    "export": ("export", None),
}
LEFT_OUT = (*COMMON, "as_json", "show", "help")  # options for people
TYPES: dict[Any, tuple[str, str, tuple[type, ...]]] = {  # name in a schema, in a message, and in Python
    bool: ("boolean", "true or false", (bool,)),
    int: ("integer", "an integer", (int,)),
    float: ("number", "a number", (int, float)),
    str: ("string", "a text", (str,)),
    Path: ("string", "a text", (str,)),
}
CODES = "`exit_code` 0, 1 and 3 are answers. 2 is a mistake, with a message."
OUTPUT = {
    "type": "object",
    "properties": {
        "exit_code": {"type": "integer", "description": f"Exit code of the command. {CODES}"},
        "result": {"description": "The JSON that the command prints with --json. null if it has none."},
        "text": {"type": "string", "description": "The last lines that the command printed."},
    },
    "required": ["exit_code", "result", "text"],
}


@dataclass(frozen=True)
class Tool:
    """A command that agents may call.

    Attributes:
        name: Name of the tool.
        command: The command, as Typer builds it.
        fixed: Name of an option that each call has.
    """

    name: str
    command: Any
    fixed: str | None

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Options and arguments of the command by their names in a call, which are those of files."""
        return {
            parameter.opts[0].lstrip("-").replace("-", "_"): parameter
            for parameter in self.command.params
            if parameter.name not in (*LEFT_OUT, self.fixed)
        }

    @property
    def has_json(self) -> bool:
        """True if the command has `--json`."""
        return any(parameter.name == "as_json" for parameter in self.command.params)

    @property
    def description(self) -> str:
        """The help of the command, or of the option that makes it another tool."""
        texts = [each.help for each in self.command.params if each.name == self.fixed]
        return " ".join(" ".join(texts or [self.command.help]).split())

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments of a call."""
        return {
            "type": "object",
            "properties": {name: _schema(parameter) for name, parameter in self.parameters.items()},
            "required": [name for name, parameter in self.parameters.items() if parameter.required],
            "additionalProperties": False,
        }

    def to_words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call. Raise InputError for arguments that the schema refuses."""
        options, positional = [str(self.command.name)], []
        options += ["--json"] * self.has_json + [f"--{self.fixed}"] * (self.fixed is not None)
        for name, value in arguments.items():
            if name not in self.parameters:
                raise unknown(f"argument of {self.name}", name, self.parameters)
            parameter = self.parameters[name]
            if value is None:  # as without it
                continue
            texts = self._check(name, parameter, value)
            if not parameter.opts[0].startswith("-"):
                positional += texts
            elif parameter.is_flag:
                options += (parameter.opts if value else parameter.secondary_opts)[:1]
            else:
                options += [f"{parameter.opts[0]}={text}" for text in texts]
        return [*options, "--", *positional] if positional else options

    def _check(self, name: str, parameter: Any, value: Any) -> list[str]:
        kind, is_list = _kind(parameter)
        _, rule, types = TYPES[kind]
        values = value if is_list and isinstance(value, list) else [value]
        is_right = isinstance(value, list) == is_list
        for each in values:
            is_right &= isinstance(each, types) and (kind is bool or not isinstance(each, bool))
            if isinstance(each, str) and "\0" in each:
                raise InputError(f"{name} of {self.name} must not contain a zero byte; got {each!r}")
        if not is_right:
            rule = f"a list, each {rule}" if is_list else rule
            raise InputError(f"{name} of {self.name} must be {rule}; got {json.dumps(value)}")
        return [str(each) for each in values]


def read_tools(program: typer.Typer) -> dict[str, Tool]:
    """Return the tools by name. One whose command or option `program` lacks is left out."""
    commands: Mapping[str, Any] = typer.main.get_command(program).commands  # type: ignore[attr-defined]
    return {
        name: Tool(name, commands[command], fixed)
        for name, (command, fixed) in TOOLS.items()
        if command in commands and fixed in (None, *(each.name for each in commands[command].params))
    }


def _kind(parameter: Any) -> tuple[Any, bool]:
    """Return the type of a parameter's values, and True if it takes several."""
    annotation = parameter.type_descriptor.annotation
    inner: Sequence[Any] = getattr(annotation, "__args__", ())
    kind = inner[0] if inner else annotation
    return (kind if kind in TYPES else str), bool(inner)


def _schema(parameter: Any) -> dict[str, Any]:
    kind, is_list = _kind(parameter)
    schema: dict[str, Any] = {"type": TYPES[kind][0]}
    if is_list:
        schema = {"type": "array", "items": schema}
    shown = f" Default: {parameter.show_default}." if isinstance(parameter.show_default, str) else ""
    schema["description"] = " ".join((parameter.help or "").split()) + shown
    if isinstance(parameter.default, bool | int | float | str) and parameter.default != "":
        schema["default"] = parameter.default
    return schema
