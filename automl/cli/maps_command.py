"""`automl maps`: pictures of what the modules of an exported model attend to."""

from pathlib import Path
from typing import Annotated

import typer

from automl.base.errors import InputError
from automl.base.escape import printable
from automl.cli.options import TRUST_OPTION, option


def maps(
    folder: Annotated[Path, typer.Argument(help="Folder of an exported model.")],
    files: Annotated[
        list[str],
        typer.Argument(help="Inputs: images; files of sequences; source files; or folders of them."),
    ],
    out: Path = option(Path("maps"), "Folder for the pictures."),
    site: str | None = option(None, "Site of one module.", shown="all"),
    at: str | None = option(
        None,
        "Position that looks: X,Y in pixels of the picture, a step, or the number of a token.",
        shown="the mean over all positions",
    ),
    trust: bool = TRUST_OPTION,
) -> None:
    """Draw what the modules of an exported model look at."""
    from automl.export.run_maps import run_maps

    result = run_maps(folder, files, out=out, site=site, at=_numbers(at), trust=trust)
    for picture in result.pictures:
        print(printable(str(picture)))
    print(printable(f"page  {result.index}"))


def _numbers(at: str | None) -> list[int]:
    try:
        return [int(number) for number in at.split(",")] if at is not None else []
    except ValueError:
        raise InputError(f"--at takes X,Y in pixels, a step, or the number of a token; got {at}") from None
