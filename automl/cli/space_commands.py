"""`automl data`, `spaces`, `attentions`, `sites`, `cost` and `check-attention`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from automl.base.errors import InputError
from automl.base.escape import printable, shell
from automl.base.options import split_option
from automl.base.serialise import to_json
from automl.cli.command import JSON_OPTION, option, print_json

if TYPE_CHECKING:
    from automl.task.subject import Subject


def data(
    path: Annotated[
        str | None,
        typer.Argument(
            help="Folder or archive: images by class or in COCO's layout, code, stereo pairs, or sequences."
        ),
    ] = None,
    download: str | None = option(None, "Name of a published dataset to download; see --list."),
    show: bool = option(False, "List the published datasets: size, license, source.", None, "--list"),
    space: str | None = option(None, "Space of a search, whose task reads the data.", shown="by the data"),
    size: int = option(128, "Side of the images in pixels."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Describe a dataset, or download one."""
    if (path is not None) + (download is not None) + show != 1:
        raise InputError("give exactly one of PATH, --download NAME and --list")
    if path is None:
        _print_published(download, as_json)
        return
    from automl.task.opening import describe_data

    described = describe_data(path, space=space, size=size)
    for line in described.lines():
        print(printable(line))
    with_space = [] if space is None else ["--space", space]
    print(f"next      {shell(['automl', 'search', *with_space, '--data', path])}")
    if as_json:
        print_json(to_json(described))


def _print_published(name: str | None, as_json: bool) -> None:
    """Download the dataset called `name`, or list all."""
    from automl.data.download import download_published, list_published, published_datasets

    if name is None:
        for line in list_published():
            print(line)
        if as_json:
            print_json(
                [{**asdict(dataset), "size": dataset.size} for dataset in published_datasets().values()]
            )
        return
    published, folder = download_published(name)
    data_option = [] if published.downloads_itself else ["--data", str(folder)]
    print(f"downloaded {printable(str(folder))}")
    print(f"license    {published.license}; source: {published.source}")
    print(f"next       {shell(['automl', 'search', '--space', published.space, *data_option])}")
    if as_json:
        print_json({"name": name, "folder": str(folder), "space": published.space})


def spaces() -> None:
    """List the search spaces."""
    from search.space import SPACES, registered_spaces

    listed = [*SPACES.values(), *registered_spaces().values()]
    for space in sorted(listed, key=lambda space: space.name != "folder"):  # a user's own data come first
        print(f"{space.name:14} {space.summary}")
    print("\nA space of your own: --space file.py:function or --space package.module:function")


def attentions(as_json: bool = JSON_OPTION) -> None:
    """List the attention types with options, cost and source."""
    from automl.cli.tables import attentions_table, describe_attentions

    for line in attentions_table():
        print(line)
    if as_json:
        print_json(describe_attentions())


ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Model: xresnet18, larnn, selfattention, psmnet, torchvision:NAME, timm:NAME, file.py:Net or "
        "module:Net."
    ),
]
SIZE_OPTION = option(
    None,
    "Side of images in pixels, height of stereo pairs, steps of sequences, or tokens of texts.",
    shown="128; stereo and detection 256, text 200",
)
MODEL_OPTIONS = option(None, "Option of the model: depth=12, hidden=96. Repeatable.", None, "--option")
TASK_OPTION = option(None, "Task; detection builds Mask R-CNN on the backbone.", shown="the model's")


def sites(
    backbone: ModelArgument,
    size: int | None = SIZE_OPTION,
    option: list[str] | None = MODEL_OPTIONS,
    task: str | None = TASK_OPTION,
    attention: str | None = option(
        None, "Types in the columns: ssa,timm:se,file.py:Class.", shown="the table's"
    ),
) -> None:
    """List the sites of a model and the cost of attention types."""
    from automl.cli.tables import sites_table
    from automl.config.nouns import split_names
    from backbones import sites

    subject, types = _subject(backbone, size, option, task), split_names(attention)
    for line in sites_table(sites(subject.build(), subject.example(2)), *[types] if types else ()):
        print(printable(line))


def cost(
    backbone: ModelArgument,
    size: int | None = SIZE_OPTION,
    option: list[str] | None = MODEL_OPTIONS,
    task: str | None = TASK_OPTION,
    modules: list[str] | None = option(
        None, "Module: SITE=TYPE or SITE=TYPE:option=value,option=value. Repeatable.", None, "--place"
    ),
    batch: int | None = option(None, "Batch size of a training step.", shown="8; stereo and detection 2"),
    as_json: bool = JSON_OPTION,
) -> None:
    """Print parameters, MACs, memory and step time of a model.

    With a placement, also of the model with it.
    """
    from automl.cli.tables import cost_table, read_placement
    from automl.costs.profile import costs

    chosen = _subject(backbone, size, option, task)
    values = costs(chosen, read_placement(modules or []), batch)
    for line in cost_table(values, chosen.description):
        print(printable(line))
    if as_json:
        print_json({name: asdict(value) for name, value in values.items()})


def check_attention(
    attention: Annotated[str, typer.Argument(help="Attention: file.py:Class, timm:NAME or a type's name.")],
    backbone: str = option("xresnet18", "Model, as for automl sites."),
    size: int | None = SIZE_OPTION,
    option: list[str] | None = option(
        None, "Option of the attention, NAME=VALUE. Repeatable.", None, "--option"
    ),
    backbone_option: list[str] | None = option(
        None, "Option of the model, NAME=VALUE. Repeatable.", None, "--backbone-option"
    ),
    task: str | None = TASK_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Check an attention module at every site of a model."""
    from attention.spec import parse_option
    from automl.cli.tables import check_table
    from automl.export.check_attention import check_attention

    result = check_attention(
        attention,
        backbone,
        options={name: parse_option(value) for name, value in map(split_option, option or [])},
        backbone_options=_options(backbone, backbone_option),
        size=size,
        task=task,
    )
    for line in check_table(result):
        print(printable(line))
    if as_json:
        print_json(asdict(result))
    if not result.passed:
        raise typer.Exit(2)


def _subject(backbone: str, size: int | None, texts: list[str] | None, task: str | None) -> "Subject":
    from automl.task.subject import make_subject

    return make_subject(backbone, size=size, options=_options(backbone, texts), task=task)


def _options(backbone: str, texts: list[str] | None) -> dict[str, Any]:
    from automl.search.configuration import read_option

    return {name: read_option(backbone, name, value) for name, value in map(split_option, texts or [])}
