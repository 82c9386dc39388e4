"""The command line. Each command is one documented function of ours, with its arguments as options."""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attention import InputError
from automl.search import SearchResult, run_search
from automl.sites import list_sites, sites_table
from search.spaces import SPACES

app = typer.Typer(
    name="automl",
    help="Search where attention goes in your network, and prove that it helps.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="End standard output with one JSON object.")]
DataPath = Annotated[
    str | None, typer.Option(help="A folder or archive of images to read instead of downloading.")
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Mistakes in the input end with one message and exit code 2."""
    # What libraries deprecate is no news for who runs a search. A search's log has it all the same.
    for category in (DeprecationWarning, FutureWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        app(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def search(
    space: Annotated[str, typer.Option(help="digits, nette, woof, file.py:function or module:function.")],
    data: DataPath = None,
    trials: Annotated[int, typer.Option(help="How many configurations to try.")] = 16,
    epochs: Annotated[int | None, typer.Option(help="Epochs of a trial that is not cut.")] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    subset: Annotated[float, typer.Option(help="Stratified fraction of the images.")] = 1.0,
    name: Annotated[str | None, typer.Option(help="Name of the search.")] = None,
    seed: Annotated[int, typer.Option(help="Of the sampler and of every trial.")] = 0,
    cpus_per_trial: Annotated[float, typer.Option(help="CPU cores of a trial.")] = 1,
    gpus_per_trial: Annotated[
        float | None, typer.Option(help="GPUs of a trial; 1 if there are any.", show_default=False)
    ] = None,
    storage: Annotated[str, typer.Option(help="Folder for the searches' folders.")] = "searches",
    as_json: Json = False,
) -> None:
    """Search a space: which attention, how many modules, where, with which hyperparameters."""
    result = run_search(
        space,
        data=data,
        trials=trials,
        epochs=epochs,
        size=size,
        subset=subset,
        name=name,
        seed=seed,
        cpus_per_trial=cpus_per_trial,
        gpus_per_trial=gpus_per_trial,
        storage=storage,
    )
    _print_search(result)
    if as_json:
        print(json.dumps(result.to_json()))
    if result.best is None:
        sys.exit(1)


def _print_search(result: SearchResult) -> None:
    print(
        f"search {result.search}: {result.completed} trials complete, {result.pruned} pruned, "
        f"{result.infeasible} infeasible, {result.errors} errors, {result.seconds:.0f} s"
    )
    for title, trial in (("best", result.best), ("baseline", result.baseline)):
        if trial is None:
            print(f"{title:9} none was trained to its end")
        else:
            placement = trial.config["model"]["placement"]
            where = ", ".join(f"{spec['type']} at {site}" for site, spec in placement.items())
            print(
                f"{title:9} {trial.metric} {trial.value:.4f}  {trial.config['model']['backbone']}, "
                f"{where or 'no attention'}  (run {trial.run_id})"
            )
    if result.failure:
        print(f"error     {result.failure}; more in {result.folder}")
    if result.untracked:
        print(f"warning   MLflow did not take {result.untracked} writes; why is in {result.folder}/log.txt")
    if result.best is not None:
        print("next      mlflow ui")
        print(f"          automl export --best --search {result.search} --out exports/{result.search}")


@app.command()
def spaces() -> None:
    """List the search spaces."""
    for space in SPACES.values():
        print(f"{space.name:8} {space.summary}")
    print("\nA space of your own: --space file.py:function or --space package.module:function")


@app.command()
def sites(
    backbone: Annotated[str, typer.Argument(help="A backbone, such as xresnet18.")],
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 128,
    width: Annotated[float, typer.Option(help="Multiplies the channels of the stages.")] = 1.0,
) -> None:
    """List a backbone's sites, with parameters and MACs of each attention at each site."""
    for line in sites_table(list_sites(backbone, size=size, width=width)):
        print(line)


if __name__ == "__main__":
    main()
