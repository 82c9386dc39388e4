"""`automl studies` and `automl study`."""

import sys
from typing import Any

import typer

from automl.base.escape import printable
from automl.cli.options import option, with_options_of
from automl.cli.search_command import print_preview
from automl.config.search_options import StudyOptions


def studies() -> None:
    """List the published experiments that `automl study` repeats."""
    from automl.search.studies import list_studies

    for study in list_studies().values():
        print(f"{study.name:20} {study.summary}")
    print("\nautoml study NAME --small runs a small version in minutes, on data of the package")


@with_options_of(StudyOptions)
def study(
    context: typer.Context,
    *,
    dry_run: bool = option(False, "Estimate the duration without training.", None, "--dry-run"),
    **values: Any,
) -> None:
    """Repeat a published experiment, and print both tables.

    Resume a study that was stopped. Add seeds to a finished one.
    """
    from automl.search.studies import run_study, study_settings

    chosen = {key: value for key, value in values.items() if value is not None}
    if dry_run:
        print_preview(study_settings(**chosen))
        return
    result = run_study(**chosen)
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
