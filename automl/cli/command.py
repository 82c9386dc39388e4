"""Options of several commands, such as `--json`, and `--help-all` of those that hide options.

A command for a search takes its name as an argument and as `--search`.
"""

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from contextvars import ContextVar
from dataclasses import MISSING
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from automl.base.errors import InputError, describe_error, is_raised_by_user
from automl.base.options import STORAGE, WRITES, Option, options_of
from automl.base.terminal import escaped_output
from automl.base.text import check_ends

COMMON = ("help_all", "same")  # options of every command
_output: ContextVar[TextIO | None] = ContextVar("_output", default=None)


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = parameter.name == "help_all"  # type: ignore[attr-defined]
        print(context.get_help(), end="")
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", callback=_show_all, is_eager=True, expose_value=False, help="Show all options."
    ),
]


NameOption = Annotated[str | None, typer.Option("--search", hidden=True)]
NameArgument = Annotated[str | None, typer.Argument(metavar="NAME", hidden=True)]


class Command(TyperCommand):
    """A command that names the commands with an option which it does not have itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line. Raise InputError for a text that is empty."""
        words = "=".join(args).split("=")  # `args` is emptied
        valued = [each for each in self.params if not getattr(each, "is_flag", False)]
        defaults = {option: each.default for each in valued for option in each.opts}
        for before, word in pairwise(["", *args]):
            option = word.removesuffix("=") or before
            if (not word or (word == f"{option}=" and option in defaults)) and defaults.get(option) != "":
                what = option if option in defaults else "an argument"
                raise InputError(f"{what} must not be empty; leave it out, or give a value")
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = getattr(error, "option_name", None)
            others = ctx.parent.command.commands.values() if name and ctx.parent else ()
            owners = [str(other.name) for other in others if any(name in each.opts for each in other.params)]
            if owners and self.name not in owners:
                error.message += f", which is an option of {', '.join(owners)}."  # type: ignore[attr-defined]
            flags = getattr(getattr(error, "param", None), "opts", ())
            values = [value for flag, value in pairwise(words) if flag in flags]
            if values and values[-1] not in error.message:  # type: ignore[attr-defined]
                error.message += f"; got {values[-1]}"  # type: ignore[attr-defined]
            raise


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with the common options added to its signature, for Typer."""
    signature = inspect.signature(function, eval_str=True)
    contexts = [
        name for name, parameter in signature.parameters.items() if parameter.annotation is typer.Context
    ]

    @functools.wraps(function)
    def run(*, same: str | None = None, **values: Any) -> None:
        if same is not None:
            if values["search"] not in (None, same):
                raise InputError(f"two searches are named, {values['search']} and {same}; give one of them")
            values["search"] = same
            for context in contexts:
                values[context].params["search"] = same
        for value in values.values():
            for each in value if isinstance(value, list | tuple) else [value]:
                if isinstance(each, str | Path):
                    check_ends(each)
        with escaped_output(), json_alone() if values.get("as_json") else nullcontext():
            try:
                function(**{name: values[name] for name in signature.parameters})
            except SystemExit as error:
                if not is_raised_by_user(error):
                    raise
                raise InputError(f"code of yours ended the program: {describe_error(error)}") from error

    added: dict[str, Any] = {}
    if "search" in signature.parameters:
        added["same"] = NameArgument
        if isinstance(declaration_of(signature.parameters["search"]), ArgumentInfo):
            added["same"] = NameOption
    if any(getattr(parameter.default, "hidden", False) for parameter in signature.parameters.values()):
        added["help_all"] = HelpAll
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # Typer reads the signature
    return run


def declaration_of(parameter: inspect.Parameter) -> Any:
    """Return what declares an option or argument for Typer."""
    return next(iter(getattr(parameter.annotation, "__metadata__", ())), parameter.default)


@contextmanager
def json_alone() -> Iterator[None]:
    """Redirect text to standard error inside the block. Only `print_json` writes to standard output.

    In a program, standard error takes the place of standard output until its end: also of what other
    processes, libraries in C and functions of `atexit` print.
    """
    out = sys.stdout
    with suppress(OSError, AttributeError):  # a test or a notebook has replaced it
        if out.fileno() == 1:
            out.flush()
            out = os.fdopen(os.dup(1), "w", encoding="utf-8")
            os.dup2(2, 1)
    token = _output.set(out)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _output.reset(token)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on standard output."""
    print(json.dumps(value), file=_output.get() or sys.stdout, flush=True)


Function = TypeVar("Function", bound=Callable[..., None])


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


def with_options_of(*sources: type) -> Callable[[Function], Function]:
    """Decorate a command whose `**values` are the options that dataclasses declare."""

    def decorate(command: Function) -> Function:
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
        explicit = source is not None and source.name == "COMMANDLINE"
        if explicit and name not in (option, *allowed):
            names = ", ".join(flags[other] for other in allowed if other not in ("as_json", "space"))
            raise InputError(
                f"{flags[name]} {value} cannot be combined with --{option}, which keeps the settings. "
                f"Leave it out; allowed are {names}."
            )
