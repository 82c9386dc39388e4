"""`automl referee`."""

import sys
from typing import Any

import typer

from automl.cli.confirm_command import print_confirm
from automl.cli.json_output import print_json
from automl.cli.options import JSON_OPTION, only, with_options_of
from automl.confirm.options import RefereeOptions

CODES = {"better": 0, "worse": 3}  # exit codes; 1 for other outcomes, 2 for mistakes and failed runs


@with_options_of(RefereeOptions)
def referee(
    context: typer.Context,
    *,
    as_json: bool = JSON_OPTION,
    **values: Any,
) -> None:
    """Compare training commands in any language with fresh seeds.

    Exit code: 0 better, 1 not shown, 2 mistake or failed run, 3 worse.
    """
    from automl.confirm.run_referee import run_referee

    if values["resume"] is not None:
        only(context, "resume", "storage", "as_json")
    result = run_referee(**{name: value for name, value in values.items() if value is not None})
    print_confirm(result, values["storage"])
    if as_json:
        print_json(result.value)
    verdict = result.verdict
    is_mistake = verdict.is_constant or (not verdict.complete and bool(result.logs))
    if is_mistake or verdict.final != "better":
        sys.exit(2 if is_mistake else CODES.get(str(verdict.final), 1))
