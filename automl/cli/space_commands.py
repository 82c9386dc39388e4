"""`automl spaces` and `automl sites`: what can be searched."""

from typing import Annotated

import typer


def spaces() -> None:
    """List the search spaces."""
    from search.spaces import SPACES

    for space in SPACES.values():
        print(f"{space.name:14} {space.summary}")
    print("\nA space of your own: --space file.py:function or --space package.module:function")


def sites(
    backbone: Annotated[
        str, typer.Argument(help="xresnet18, torchvision:NAME, timm:NAME, file.py:Net or module:Net.")
    ],
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 128,
    width: Annotated[
        float | None,
        typer.Option(
            help="Multiplies the channels of the stages, of backbones that take it.", show_default=False
        ),
    ] = None,
) -> None:
    """List a backbone's sites, with parameters and MACs of each attention at each site."""
    from automl.cli.sites import list_sites, sites_table

    for line in sites_table(list_sites(backbone, size=size, width=width)):
        print(line)
