"""Options of several commands."""

from typing import Annotated, Any

import typer

from attention import InputError


def describe(
    help: str | None, group: str | None = None, *flags: str, shown: str | bool = True, rare: bool = False
) -> Any:
    """Describe an option on the command line.

    Args:
        help: The text in `--help`.
        group: The heading in `--help`.
        flags: The names of the option, if they differ from the parameter's.
        shown: The default in `--help`.
        rare: Show the option only in `--help-all`.
    """
    return typer.Option(*flags, help=help, show_default=shown, hidden=rare, rich_help_panel=group)


Json = Annotated[bool, describe("Print JSON on standard output, and text on standard error.", None, "--json")]
StorageOption = Annotated[str, describe("Folder of all searches, or its address.")]
PrecisionOption = Annotated[str, describe("Precision: auto, bf16, fp16 or fp32.", rare=True)]
CompileOption = Annotated[str, describe("Execution of steps: auto, off, graphs or inductor.", rare=True)]
CallbackOption = Annotated[list[str] | None, describe("Callback: file.py:Name. Repeatable.", rare=True)]


def split_option(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`, a value of `--option` or `--backbone-option`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"an option is NAME=VALUE; got {text!r}")
    return name, value


def only(context: typer.Context, option: str, *allowed: str) -> None:
    """Raise InputError for options that cannot be combined with `option`."""
    for parameter, value in context.params.items():
        source = context.get_parameter_source(parameter)
        explicit = source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")
        if explicit and parameter not in (option, *allowed, "save_config"):
            flag = parameter.replace("_", "-")
            names = ", --".join(name for name in allowed if name not in ("as_json", "space"))
            raise InputError(
                f"--{flag} {value} cannot be combined with --{option}, which keeps the settings. "
                f"Leave it out; allowed are --{names}."
            )
