"""`automl studies` and `automl study`."""

import sys
from typing import Annotated, Any

import typer

from automl.cli.options import StorageOption, describe
from automl.config.escape import printable


def studies() -> None:
    """List the studies: published experiments that `automl study` repeats."""
    from automl.studies.study_table import STUDIES

    for study in STUDIES.values():
        print(f"{study.name:20} {study.summary}")
    print("\nautoml study NAME --small runs one in minutes on data that come with the package")


def study(
    name: Annotated[str, typer.Argument(help="See automl studies.")],
    small: Annotated[
        bool, describe("The small form: minutes, on bundled data or --data.", None, "--small")
    ] = False,
    seeds: Annotated[int, describe("Runs of each cell, with the same seeds for all.")] = 1,
    data: Annotated[str | None, describe("Folder or archive of the data.", shown="the study's")] = None,
    out: StorageOption = "searches",
    epochs: Annotated[int | None, describe("Of each training.", shown="as published")] = None,
    subset: Annotated[float, describe("Stratified fraction of the inputs.")] = 1.0,
    seed: Annotated[int, describe("The first seed.")] = 0,
    max_memory: Annotated[
        str | None, describe("Maximum memory of a training step, such as 11GB.", shown=False)
    ] = None,
    concurrent: Annotated[int | None, describe("Most trials at once.", shown="as there is room")] = None,
    cpus_per_trial: Annotated[float, describe("CPU cores of each worker.")] = 1,
    gpus_per_trial: Annotated[
        float | None, describe("GPUs of each worker; 1 if there are any.", shown=False)
    ] = None,
    workers_per_trial: Annotated[int, describe("Processes of one trial, data-parallel.")] = 1,
) -> None:
    """Repeat a published experiment: train its grid, and print its table beside the published one.

    Resumes a study that was stopped, and adds seeds to a finished one.
    """
    from automl.studies.run_study import run_study

    given: dict[str, Any] = {
        "epochs": epochs,
        "subset": subset,
        "seed": seed,
        "max_memory": max_memory,
        "concurrent": concurrent,
        "cpus_per_trial": cpus_per_trial,
        "gpus_per_trial": gpus_per_trial,
        "workers_per_trial": workers_per_trial,
    }
    settings = {key: value for key, value in given.items() if value is not None}
    result = run_study(name, small=small, seeds=seeds, data=data, storage=out, **settings)
    for table in result.tables:
        print()
        for line in table.lines():
            print(printable(line))
    print(f"\nsource    {result.study.source}")
    if small:
        print("scale     the small form: its figures and the published ones are of different models and data")
    print(f"tables    {', '.join(map(str, result.files))}")
    if result.missing:
        from automl.search.result import missing_cells

        print(f"error     {missing_cells(result.missing)}; run the same command again to train them")
        sys.exit(1)
