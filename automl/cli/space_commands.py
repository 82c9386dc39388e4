"""`automl data`, `spaces`, `sites` and `cost`: what can be searched, and what it costs."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from attention import InputError
from automl.cli.json_output import print_json
from automl.cli.options import Json, describe
from automl.config.escape import printable, shell

if TYPE_CHECKING:
    from automl.costs.subject import Subject


def data(
    path: Annotated[
        str | None,
        typer.Argument(
            help="Images, one folder per class or in COCO's layout, code, stereo pairs, or sequences."
        ),
    ] = None,
    download: Annotated[
        str | None, describe("Download the published dataset of this name, once; see --list.")
    ] = None,
    show: Annotated[
        bool, describe("List the published datasets: size, license, source.", None, "--list")
    ] = False,
    size: Annotated[int, describe("Side of the images in pixels.")] = 128,
    flip: Annotated[bool, describe("Mirror images on the sheet.", None, "--flip/--no-flip")] = True,
    augment: Annotated[str, describe("On the sheet: light, standard or strong.")] = "light",
    as_json: Json = False,
) -> None:
    """Show what a dataset holds, with a sheet of samples of images; or download a published dataset."""
    if (path is not None) + (download is not None) + show != 1:
        raise InputError("say what to look at: PATH, or --download NAME, or --list")
    if path is None:
        _print_published(download, as_json)
        return
    from automl.cli.data import look_over_task, overview, write_sheet

    of_task = look_over_task(path)
    described = overview(path, size) if of_task is None else of_task
    for line in described.lines():
        print(printable(line))
    if of_task is None:
        print(f"sheet       {write_sheet(path, size, flip=flip, augment=augment)}")
    print(f"next      {shell(['automl', 'search', '--data', path])}")
    if as_json:
        print_json(asdict(described))


def _print_published(name: str | None, as_json: bool) -> None:
    """Download the dataset of this name, or list all."""
    from automl.data.published import PUBLISHED, download_published, published_table

    if name is None:
        for line in published_table():
            print(line)
        if as_json:
            print_json([{**asdict(one), "size": one.size} for one in PUBLISHED.values()])
        return
    published, folder = download_published(name)
    given = [] if published.finds else ["--data", str(folder)]
    print(f"downloaded {printable(str(folder))}")
    print(f"license    {published.license}; source: {published.source}")
    print(f"next       {shell(['automl', 'search', '--space', published.space, *given])}")
    if as_json:
        print_json({"name": name, "folder": str(folder), "space": published.space})


def spaces() -> None:
    """List the search spaces."""
    from search.spaces import SPACES, registered_spaces

    for space in (*SPACES.values(), *registered_spaces().values()):
        print(f"{space.name:14} {space.summary}")
    print("\nA space of your own: --space file.py:function or --space package.module:function")


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="xresnet18, larnn, selfattention, psmnet, torchvision:NAME, timm:NAME, file.py:Net, module:Net."
    ),
]
SizeOption = Annotated[
    int | None,
    describe(
        "Side of images in pixels, height of stereo pairs, steps of sequences, or tokens of texts.",
        shown="128; stereo and detection 256, text 200",
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    describe("Of the model, as NAME=VALUE: depth=12, hidden=96; may be repeated.", None, "--option"),
]
TaskOption = Annotated[
    str | None, describe("detection: Mask R-CNN over the backbone.", shown="what the model is for")
]


def sites(
    backbone: ModelArgument,
    size: SizeOption = None,
    option: ModelOptions = None,
    task: TaskOption = None,
) -> None:
    """List a model's sites, with parameters and MACs of each attention at each site."""
    from automl.cli.sites import sites_table
    from backbones import sites

    subject = _subject(backbone, size, option, task)
    for line in sites_table(sites(subject.build(), subject.example(2))):
        print(printable(line))


def cost(
    backbone: ModelArgument,
    size: SizeOption = None,
    option: ModelOptions = None,
    task: TaskOption = None,
    place: Annotated[
        list[str] | None, describe("SITE=TYPE or SITE=TYPE:option=value,option=value; may be repeated.")
    ] = None,
    batch: Annotated[
        int | None, describe("Inputs of a training step.", shown="8; stereo and detection 2")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print parameters, MACs, activations and step time of a model, plain and with a placement."""
    from automl.cli.cost import costs, lines, read_places

    chosen = _subject(backbone, size, option, task)
    found = costs(chosen, read_places(place or []), batch)
    for line in lines(found, chosen.one):
        print(printable(line))
    if as_json:
        print_json({name: asdict(value) for name, value in found.items()})


def _subject(backbone: str, size: int | None, texts: list[str] | None, task: str | None) -> "Subject":
    from automl.costs.subject import subject
    from automl.search.configuration import read_option

    options = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--option takes NAME=VALUE; got {text!r}")
        options[name] = read_option(backbone, name, value)
    return subject(backbone, size=size, options=options, task=task)
