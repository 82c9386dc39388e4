"""`automl referee`."""

import sys
from typing import Any

import typer

from automl.base.errors import InputError
from automl.cli.confirm_command import print_confirm
from automl.cli.json_output import print_json
from automl.cli.options import JSON_OPTION, only, option, with_options_of
from automl.confirm.options import RefereeOptions

CODES = {"better": 0, "worse": 3}  # exit codes; 1 for other outcomes, 2 for mistakes and failed runs


@with_options_of(RefereeOptions)
def referee(
    context: typer.Context,
    *,
    resume: str | None = option(
        None, "Name of a comparison to resume. Failed runs are repeated.", shown=False
    ),
    as_json: bool = JSON_OPTION,
    **values: Any,
) -> None:
    """Compare training commands in any language with fresh seeds.

    Exit code: 0 better, 1 not shown, 2 mistake or failed run, 3 worse.
    """
    from automl.confirm.run_referee import resume_referee, run_referee

    if resume is not None:
        only(context, "resume", "storage", "as_json")
        result = resume_referee(resume, storage=values["storage"])
    else:
        for needed, flag in (
            ("baseline", "--baseline"),
            ("metric", "--metric"),
            ("candidates", "--candidate"),
        ):
            if not values[needed]:
                raise InputError(
                    f"automl referee needs {flag}, as in: automl referee --baseline 'python train.py --seed "
                    f"{{seed}}' --candidate 'python train.py --wide --seed {{seed}}' --metric 'accuracy=(.*)'"
                )
        result = run_referee(**values)
    print_confirm(result, values["storage"])
    if as_json:
        print_json(result.value)
    verdict = result.verdict
    is_mistake = verdict.is_constant or (not verdict.complete and bool(result.logs))
    if is_mistake or verdict.final != "better":
        sys.exit(2 if is_mistake else CODES.get(str(verdict.final), 1))
