"""Options that every command has: `--config` and `--save-config`, and `--help-all` if it hides options."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from automl.base.errors import InputError, describe_error, is_raised_by_user
from automl.base.terminal import escaped_output
from automl.cli.config_file import NOT_SAVED, ConfigOption, SaveOption, write
from automl.cli.json_output import json_alone


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = parameter.name == "help_all"  # type: ignore[attr-defined]
        print(context.get_help(), end="")
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        callback=_show_all,
        is_eager=True,
        expose_value=False,
        help="Show all options.",
    ),
]


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with the common options added to its signature, for Typer."""
    signature = inspect.signature(function, eval_str=True)
    options = {
        name: _option_name(parameter)
        for name, parameter in signature.parameters.items()
        if parameter.annotation is not typer.Context and name not in NOT_SAVED
    }

    @functools.wraps(function)
    def run(*, save_config: Path | None = None, **values: Any) -> None:
        if save_config is not None:
            write(save_config, {option: values[name] for name, option in options.items()})
        with escaped_output(), json_alone() if values.get("as_json") else nullcontext():
            try:
                function(**{name: values[name] for name in signature.parameters})
            except SystemExit as error:
                if not is_raised_by_user(error):
                    raise
                raise InputError(f"code of yours ended the program: {describe_error(error)}") from error

    added: dict[str, Any] = {"config": ConfigOption, "save_config": SaveOption}
    if any(getattr(parameter.default, "hidden", False) for parameter in signature.parameters.values()):
        added["help_all"] = HelpAll
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    run.__annotations__ = {}  # Typer reads the signature
    return run


def _option_name(parameter: inspect.Parameter) -> str:
    """Return the name of an option without dashes, as config files have it."""
    for flag in getattr(parameter.default, "param_decls", None) or ():
        if flag.startswith("--"):
            return str(flag).partition("/")[0].lstrip("-")
    return parameter.name.replace("_", "-")
