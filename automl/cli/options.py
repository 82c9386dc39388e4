"""The options that several commands share."""

from typing import Annotated, Any

import typer

from attention import InputError


def describe(
    help: str | None, group: str | None = None, *flags: str, shown: str | bool = True, rare: bool = False
) -> Any:
    """Describe an option on the command line.

    group: of the options in `--help`. flags: its names, where its parameter's is not the only one. shown: the
    default as `--help` shows it. rare: shown by `--help-all` alone.
    """
    return typer.Option(*flags, help=help, show_default=shown, hidden=rare, rich_help_panel=group)


Json = Annotated[bool, describe("One JSON object alone on standard output.", None, "--json")]
StorageOption = Annotated[str, describe("Folder or address of all searches.")]
PrecisionOption = Annotated[str, describe("auto, bf16, fp16 or fp32.", rare=True)]
CompileOption = Annotated[str, describe("How steps are run: auto, off, graphs or inductor.", rare=True)]
CallbackOption = Annotated[
    list[str] | None,
    describe("Called on the events of a search: tensorboard or file.py:Name; may be repeated.", rare=True),
]


def only(context: typer.Context, option: str, *allowed: str) -> None:
    """Refuses options that cannot be combined with `option`."""
    for parameter, value in context.params.items():
        given = context.get_parameter_source(parameter)
        explicit = given is not None and given.name in ("COMMANDLINE", "DEFAULT_MAP")
        if explicit and parameter not in (option, *allowed, "save_config"):
            flag = parameter.replace("_", "-")
            raise InputError(
                f"--{flag} {value} cannot be combined with --{option}: what is resumed keeps its settings. "
                f"Only --{', --'.join(a for a in allowed if a not in ('as_json', 'space'))} can be given."
            )
