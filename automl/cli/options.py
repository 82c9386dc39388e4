"""The options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object alone on standard output.")]
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
