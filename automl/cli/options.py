"""The options that several commands share."""

from typing import Annotated

import typer

from attention import InputError

Json = Annotated[bool, typer.Option("--json", help="One JSON object alone on standard output.")]
StorageOption = Annotated[str, typer.Option(help="Folder or address of all searches.")]
PrecisionOption = Annotated[str, typer.Option(help="auto, bf16, fp16 or fp32.", hidden=True)]
CallbackOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Called on the events of a search: tensorboard or file.py:Name; may be repeated.",
        hidden=True,
    ),
]
CompileOption = Annotated[
    str, typer.Option(help="How steps are run: auto, off, graphs or inductor.", hidden=True)
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
