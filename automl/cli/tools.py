"""Tools for agents, with the options of the commands."""

import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from automl.base.errors import InputError, unknown
from automl.base.options import PUBLISHES
from automl.cli.command import COMMON, declaration_of
from automl.storage.storage import is_address

# The commands of the tools, and an option that each call has.
NAMES = ("referee", "noise", "ledger", "search", "status", "report", "solve", "export")
TOOLS: dict[str, tuple[str, str | None]] = {name: (name, None) for name in NAMES}
TOOLS["noise"] = ("referee", "noise")
LEFT_OUT = (*COMMON, "as_json", "show", "help")  # options for people
# Names of types in a schema and in a message, and in Python.
TYPES: dict[Any, tuple[str | list[str], str, tuple[type, ...]]] = {
    bool: ("boolean", "true or false", (bool,)),
    int: ("integer", "an integer", (int,)),
    float: ("number", "a number", (int, float)),
    str: ("string", "a text", (str,)),
    Any: (["string", "number"], "a text or a number", (str, int, float)),  # such as 5M
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
        allowed: Effects that calls may have: `PUBLISHES`, and `WRITES` outside of the current folder.
    """

    name: str
    command: Any
    fixed: str | None
    allowed: Collection[str] = ()

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Options and arguments of the command by their names in a call, which are those of files."""
        return {
            parameter.opts[0].lstrip("-").replace("-", "_"): parameter
            for parameter in self.command.params
            if parameter.name not in (*LEFT_OUT, self.fixed)
        }

    @cached_property
    def effects(self) -> dict[str, str]:
        """Effects of options and arguments by their names in a call. Empty for most."""
        declared = inspect.signature(self.command.callback, eval_str=True).parameters
        return {
            name: getattr(declaration_of(declared[parameter.name]), "effect", "")
            for name, parameter in self.parameters.items()
        }

    @property
    def hints(self) -> dict[str, Any]:
        """Annotations of the protocol. A command with `--trust` runs code or commands of its caller."""
        runs_code, writes = "trust" in self.parameters, any(self.effects.values())
        return {
            "read_only_hint": not writes,
            "destructive_hint": writes,  # outputs replace files
            "idempotent_hint": not runs_code,
            "open_world_hint": runs_code or PUBLISHES in self.effects.values(),
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

    def _check_effect(self, name: str, text: str) -> None:
        """Raise InputError if the server does not allow the effect of an option."""
        effect = self.effects[name]
        rule = option = ""
        if effect == PUBLISHES:
            rule, option = "must be left out, as it publishes the model", "--allow-publish"
        elif effect and not _is_below(text, Path.cwd()):
            rule, option = f"must be in the folder of the server, {Path.cwd()}", "--allow-outside"
        if rule and effect not in self.allowed:
            raise InputError(
                f"{name} of {self.name} {rule}; got {text!r}. "
                f"Or ask the user to start automl mcp with {option}"
            )

    def _check(self, name: str, parameter: Any, value: Any) -> list[str]:
        kind, is_list = _kind(parameter)
        _, rule, types = TYPES[kind]
        values = value if is_list and isinstance(value, list) else [value]
        # In JSON, 2.0 is an integer.
        values = [int(each) if isinstance(each, float) and each.is_integer() else each for each in values]
        is_right = isinstance(value, list) == is_list
        for each in values:
            is_right &= isinstance(each, types) and (kind is bool or not isinstance(each, bool))
            if isinstance(each, str) and "\0" in each:
                raise InputError(f"{name} of {self.name} must not contain a zero byte; got {each!r}")
        if not is_right:
            rule = f"a list, each {rule}" if is_list else rule
            raise InputError(f"{name} of {self.name} must be {rule}; got {json.dumps(value)}")
        texts = [str(each) for each in values]
        for text in texts:
            self._check_effect(name, text)
        return texts


def _is_below(path: str, folder: Path) -> bool:
    """Return True if a path leads into a folder, also by links. An address does not."""
    try:
        return not is_address(path) and Path(path).expanduser().resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a name that is too long, or an unknown home folder
        return False


def read_tools(commands: Mapping[str, Any], allowed: Collection[str] = ()) -> dict[str, Tool]:
    """Return the tools by name. One whose command or option is not among `commands` is left out.

    `allowed` are the effects that calls may have.
    """
    return {
        name: Tool(name, commands[command], fixed, allowed)
        for name, (command, fixed) in TOOLS.items()
        if command in commands and fixed in (None, *(each.name for each in commands[command].params))
    }


def _kind(parameter: Any) -> tuple[Any, bool]:
    """Return the type of a parameter's values, and True if it takes several."""
    annotation = parameter.type_descriptor.annotation
    inner: Sequence[Any] = getattr(annotation, "__args__", ())
    kind = inner[0] if inner else annotation
    if not inner and kind not in (bool, int, float, Path):
        kind = Any
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
