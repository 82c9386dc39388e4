"""`--config FILE` and `--save-config FILE` of every command: its options, kept in YAML."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from attention import InputError, unknown

NOT_KEPT = ("as_json", "dry_run", "watch", "yes")  # of one call, not of what it is about
OWN = ("config", "save_config", "help_all")  # parameters that are no options of what a command does


def _read(context: typer.Context, path: Path | None) -> None:
    """Puts the file's values where the command looks for those that the command line does not give."""
    if path is None:
        return
    names = {one.opts[0].lstrip("-"): one.name for one in context.command.params if one.name not in OWN}
    values = {}
    for key, value in _mapping(path).items():
        option = str(key).replace("_", "-")
        if option not in names:
            raise unknown(f"option in {path}", str(key), sorted(names))
        values[names[option]] = value
    context.default_map = values


def _mapping(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"--config {path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path} must hold lines such as `trials: 8`, one for each option")
    return content


def write(path: Path, values: dict[str, Any]) -> None:
    """Keep the values of a command's parameters, by their names. Raises InputError where that cannot be."""
    plain = {
        name.replace("_", "-"): value if isinstance(value, bool | int | float) else _text(value)
        for name, value in values.items()
        if name not in NOT_KEPT and value not in (None, [], ())
    }
    try:
        path.write_text(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise InputError(f"--save-config {path} cannot be written: {error}") from error


def _text(value: Any) -> str | list[str]:
    return [str(one) for one in value] if isinstance(value, list | tuple) else str(value)


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_read,
        is_eager=True,
        expose_value=False,
        help="Options in YAML; the command line goes first.",
    ),
]
SaveOption = Annotated[
    Path | None, typer.Option("--save-config", help="Write the options there, for --config.")
]
