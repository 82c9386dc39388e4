"""What every command has beside its own options: `--config`, `--save-config`, and `--json` alone."""

import functools
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from automl.cli.config_file import ConfigOption, SaveOption, write
from automl.cli.json_output import json_alone


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """The command that `function`, with the options of its signature, is to be."""
    signature = inspect.signature(function, eval_str=True)
    options = [name for name, one in signature.parameters.items() if one.annotation is not typer.Context]

    @functools.wraps(function)
    def run(*, config: Path | None = None, save_config: Path | None = None, **values: Any) -> None:
        if save_config is not None:
            write(save_config, {name: values[name] for name in options})
        with json_alone() if values.get("as_json") else nullcontext():
            function(**values)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("config", ConfigOption), ("save_config", SaveOption))
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, "config": ConfigOption, "save_config": SaveOption}
    return run
