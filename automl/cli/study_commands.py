"""`automl studies` and `automl study`."""

import sys
from typing import Annotated

import typer

from automl.base.escape import printable
from automl.cli.options import STORAGE_OPTION, option, passed_on


def studies() -> None:
    """List the published experiments that `automl study` repeats."""
    from automl.studies.study_table import STUDIES

    for study in STUDIES.values():
        print(f"{study.name:20} {study.summary}")
    print("\nautoml study NAME --small runs a small version in minutes, on data of the package")


def study(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the study; see automl studies.")],
    small: bool = option(
        False, "Run a small version in minutes, on bundled data or --data.", None, "--small"
    ),
    seeds: int = option(1, "Number of trainings of each cell, all with the same seeds."),
    data: str | None = option(None, "Folder or archive of the data.", shown="the study's"),
    out: str = STORAGE_OPTION,
    epochs: int | None = option(None, "Epochs of each training.", shown="as published"),
    subset: float = option(1.0, "Fraction of the data to use, stratified."),
    seed: int = option(0, "First seed."),
    max_memory: str | None = option(None, "Maximum memory of a training step, such as 11GB.", shown=False),
    concurrent: int | None = option(None, "Maximum number of trials at once.", shown="as many as fit"),
    cpus_per_trial: float = option(1, "CPU cores of each worker."),
    gpus_per_trial: str | None = option(
        None, "GPUs of each worker: auto (measured), or a number such as 0.5.", shown="auto"
    ),
    workers_per_trial: int = option(1, "Data-parallel processes of a trial."),
) -> None:
    """Train the grid of a published experiment, and print its table beside the published one.

    Resume a study that was stopped. Add seeds to a finished one.
    """
    from automl.studies.run_study import run_study

    options = passed_on(context, "name", "small", "seeds", "data", "out")
    settings = {key: value for key, value in options.items() if value is not None}
    result = run_study(name, small=small, seeds=seeds, data=data, storage=out, **settings)
    for table in result.tables:
        print()
        for line in table.lines():
            print(printable(line))
    print(f"\nsource    {result.study.source}")
    print(f"tables    {', '.join(map(str, result.files))}")
    if result.missing:
        from automl.search.search import missing_cells

        print(f"error     {missing_cells(result.missing)}; run the same command again to train them")
        sys.exit(1)
