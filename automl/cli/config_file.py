"""`--config FILE` and `--save-config FILE`: the options of a command in a YAML file."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from automl.base.errors import InputError, unknown

NOT_SAVED = ("as_json", "dry_run", "watch", "yes")  # they concern a single call
COMMON = ("config", "save_config", "help_all")  # options of every command, not allowed in a file


def _read(context: typer.Context, path: Path | None) -> None:
    """Use the file's values as defaults of the command's options."""
    if path is None:
        return
    parameters = {
        parameter.opts[0].lstrip("-"): parameter
        for parameter in context.command.params
        if parameter.name not in COMMON
    }
    values = {}
    for key, value in _mapping(path).items():
        option = str(key).replace("_", "-")
        if option not in parameters:
            raise unknown(f"option in {path}", str(key), sorted(parameters))
        if isinstance(value, list) and not _takes_list(parameters[option]):
            value = ",".join(map(str, value))  # --attention ssa,sagan, for example
        values[parameters[option].name] = value
    context.default_map = values


def _takes_list(parameter: Any) -> bool:
    return bool(parameter.multiple or parameter.nargs == -1)


def _mapping(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"--config {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path} must have a line such as `trials: 8` for each option")
    return content


def write(path: Path, values: dict[str, Any]) -> None:
    """Write the values of a command's options to a file. Raise InputError if it cannot be written."""
    plain = {
        name: value if isinstance(value, bool | int | float) else _text(value)
        for name, value in values.items()
        if value not in (None, [], ())
    }
    try:
        path.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise InputError(f"--save-config {path} cannot be written: {error}") from error


def _text(value: Any) -> str | list[str]:
    return [str(item) for item in value] if isinstance(value, list | tuple) else str(value)


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        expose_value=False,
        help="Read options from a YAML file.",
    ),
]
SaveOption = Annotated[Path | None, typer.Option("--save-config", help="Write the options to a YAML file.")]
