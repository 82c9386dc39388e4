"""The options that several commands share."""

from typing import Annotated

import typer

from attention import InputError

Json = Annotated[bool, typer.Option("--json", help="End standard output with one JSON object.")]
DataPath = Annotated[
    str | None,
    typer.Option(
        help="A folder or archive of images, or sequences (.ts, CSV, NPZ), instead of the space's dataset."
    ),
]
StorageOption = Annotated[
    str, typer.Option(help="Folder of the searches' folders, or its address: s3://, gs://, ...")
]
PrecisionOption = Annotated[str, typer.Option(help="auto, bf16, fp16 or fp32.")]
CompileOption = Annotated[str, typer.Option(help="How steps are run: auto, off, graphs or inductor.")]


def only(context: typer.Context, option: str, *allowed: str) -> None:
    """Refuses options that cannot be combined with `option`."""
    for parameter, value in context.params.items():
        given = context.get_parameter_source(parameter)
        if given is not None and given.name == "COMMANDLINE" and parameter not in (option, *allowed):
            flag = parameter.replace("_", "-")
            raise InputError(
                f"--{flag} {value} cannot be combined with --{option}: what is resumed keeps its settings. "
                f"Only --{', --'.join(a for a in allowed if a not in ('as_json', 'space'))} can be given."
            )
