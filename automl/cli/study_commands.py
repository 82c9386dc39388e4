"""`automl studies` and `automl study`."""

import sys
from typing import Annotated, Any

import typer

from automl.cli.options import StorageOption, describe
from automl.config.escape import printable


def studies() -> None:
    """List the published experiments that `automl study` repeats."""
    from automl.studies.study_table import STUDIES

    for study in STUDIES.values():
        print(f"{study.name:20} {study.summary}")
    print("\nautoml study NAME --small runs a small version in minutes, on data of the package")


def study(
    name: Annotated[str, typer.Argument(help="Name of the study; see automl studies.")],
    small: Annotated[
        bool, describe("Run a small version in minutes, on bundled data or --data.", None, "--small")
    ] = False,
    seeds: Annotated[int, describe("Number of trainings of each cell, all with the same seeds.")] = 1,
    data: Annotated[str | None, describe("Folder or archive of the data.", shown="the study's")] = None,
    out: StorageOption = "searches",
    epochs: Annotated[int | None, describe("Epochs of each training.", shown="as published")] = None,
    subset: Annotated[float, describe("Fraction of the data to use, stratified.")] = 1.0,
    seed: Annotated[int, describe("First seed.")] = 0,
    max_memory: Annotated[
        str | None, describe("Maximum memory of a training step, such as 11GB.", shown=False)
    ] = None,
    concurrent: Annotated[
        int | None, describe("Maximum number of trials at once.", shown="as many as fit")
    ] = None,
    cpus_per_trial: Annotated[float, describe("CPU cores of each worker.")] = 1,
    gpus_per_trial: Annotated[
        float | None, describe("GPUs of each worker; default 1 if the cluster has any.", shown=False)
    ] = None,
    workers_per_trial: Annotated[int, describe("Data-parallel processes of a trial.")] = 1,
) -> None:
    """Train the grid of a published experiment, and print its table beside the published one.

    Resume a study that was stopped. Add seeds to a finished one.
    """
    from automl.studies.run_study import run_study

    options: dict[str, Any] = {
        "epochs": epochs,
        "subset": subset,
        "seed": seed,
        "max_memory": max_memory,
        "concurrent": concurrent,
        "cpus_per_trial": cpus_per_trial,
        "gpus_per_trial": gpus_per_trial,
        "workers_per_trial": workers_per_trial,
    }
    settings = {key: value for key, value in options.items() if value is not None}
    result = run_study(name, small=small, seeds=seeds, data=data, storage=out, **settings)
    for table in result.tables:
        print()
        for line in table.lines():
            print(printable(line))
    print(f"\nsource    {result.study.source}")
    print(f"tables    {', '.join(map(str, result.files))}")
    if result.missing:
        from automl.search.result import missing_cells

        print(f"error     {missing_cells(result.missing)}; run the same command again to train them")
        sys.exit(1)
