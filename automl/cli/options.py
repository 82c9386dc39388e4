"""The options that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object alone on standard output.")]
StorageOption = Annotated[str, typer.Option(help="Folder or address of all searches.")]
PrecisionOption = Annotated[str, typer.Option(help="auto, bf16, fp16 or fp32.", hidden=True)]
CompileOption = Annotated[
    str, typer.Option(help="How steps are run: auto, off, graphs or inductor.", hidden=True)
]
