"""What every command has beside its own options: `--config`, `--save-config`, and `--json` alone.

A command with more options than fit a screen hides some of them, and has `--help-all`.
"""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from automl.cli.config_file import ConfigOption, SaveOption, write
from automl.cli.json_output import json_alone
from automl.config.terminal import escaped_output


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
        help="Show the rarer options, too.",
    ),
]


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """The command that `function`, with the options of its signature, is to be."""
    signature = inspect.signature(function, eval_str=True)
    options = [name for name, one in signature.parameters.items() if one.annotation is not typer.Context]

    @functools.wraps(function)
    def run(*, save_config: Path | None = None, **values: Any) -> None:
        if save_config is not None:
            write(save_config, {name: values[name] for name in options})
        with escaped_output(), json_alone() if values.get("as_json") else nullcontext():
            function(**{name: values[name] for name in signature.parameters})

    added: dict[str, Any] = {"config": ConfigOption, "save_config": SaveOption}
    if any(_is_hidden(one) for one in signature.parameters.values()):
        added["help_all"] = HelpAll
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, **added}
    return run


def _is_hidden(parameter: inspect.Parameter) -> bool:
    described = getattr(parameter.annotation, "__metadata__", ())
    return any(getattr(one, "hidden", False) for one in described)
