"""Options of several commands."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING
from typing import Any, TypeVar

import typer

from automl.base.errors import InputError
from automl.base.options import STORAGE, WRITES, Option, options_of
from automl.cli.command import COMMON

Command = TypeVar("Command", bound=Callable[..., None])


def option(
    default: Any,
    help: str | None,
    group: str | None = None,
    *flags: str,
    shown: str | bool = True,
    rare: bool = False,
    effect: str = "",
) -> Any:
    """Declare an option of a command, as the default of its parameter.

    Args:
        default: The value without the option.
        help: The text in `--help`.
        group: The heading in `--help`.
        flags: The names of the option, if they differ from the parameter's.
        shown: The default in `--help`.
        rare: Show the option only in `--help-all`.
        effect: As of `Option`.
    """
    return with_effect(
        typer.Option(default, *flags, help=help, show_default=shown, hidden=rare, rich_help_panel=group),
        effect,
    )


def with_effect(declared: Any, effect: str) -> Any:
    """Return a declaration of Typer with the effect of its option or argument, for `tools`."""
    declared.effect = effect
    return declared


def with_options_of(*sources: type) -> Callable[[Command], Command]:
    """Decorate a command whose `**values` are the options that dataclasses declare."""

    def decorate(command: Command) -> Command:
        context, *own, _ = inspect.signature(command, eval_str=True).parameters.values()
        declared = [_parameter(*declaration) for source in sources for declaration in options_of(source)]
        command.options = sources  # type: ignore[attr-defined]
        command.__signature__ = inspect.Signature([context, *declared, *own])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str, kind: Any, default: Any, declared: Option, help: str) -> inspect.Parameter:
    if declared.argument:
        described = typer.Argument(
            ... if default is MISSING else default, help=help, metavar="".join(declared.flags) or None
        )
    else:
        described = option(
            *(default, help, declared.group, *declared.flags),
            **{key: getattr(declared, key) for key in ("shown", "rare", "effect")},
        )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=described, annotation=kind)


STORAGE_OPTION = option(STORAGE, "Folder of all searches, or its address.")
WRITTEN_STORAGE = option(STORAGE, "Folder of all searches, or its address.", effect=WRITES)
TRUST_OPTION = option(False, "Allow running user-defined code that only the files name.", None, "--trust")
JSON_OPTION = option(False, "Print JSON on standard output, and text on standard error.", None, "--json")


def passed_on(context: typer.Context, *others: str) -> dict[str, Any]:
    """Return the options of a command that are arguments of its function in Python: all but `others`."""
    own = (*others, "as_json", *COMMON)
    return {name: value for name, value in context.params.items() if name not in own}


def only(context: typer.Context, option: str, *allowed: str) -> None:
    """Raise InputError for options that cannot be combined with `option`."""
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        explicit = source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")
        if explicit and name not in (option, *allowed, "save_config"):
            names = ", ".join(flags[other] for other in allowed if other not in ("as_json", "space"))
            raise InputError(
                f"{flags[name]} {value} cannot be combined with --{option}, which keeps the settings. "
                f"Leave it out; allowed are {names}."
            )
