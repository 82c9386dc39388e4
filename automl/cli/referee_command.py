"""`automl referee`."""

import sys

import typer

from automl.base.errors import InputError
from automl.cli.confirm_command import print_confirm
from automl.cli.json_output import print_json
from automl.cli.options import CALLBACK_OPTION, JSON_OPTION, STORAGE_OPTION, only, option, passed_on

CODES = {"better": 0, "worse": 3}  # exit codes; 1 for other outcomes, 2 for mistakes and failed runs
METRIC, TEST, RESOURCES = "Metric", "Comparison", "Resources"


def referee(
    context: typer.Context,
    baseline: str | None = option(
        None, "Command to compare with. {seed} is the seed, {out} a folder of the run.", shown=False
    ),
    candidate: list[str] | None = option(None, "Command that may be better. Repeatable.", shown=False),
    metric: str | None = option(
        None, "Regular expression with a group, or key of a JSON line, in the output.", METRIC, shown=False
    ),
    metric_file: str | None = option(
        None, "CSV or JSON file below {out} with that column or key.", METRIC, shown=False
    ),
    last: bool = option(False, "Use the last of several printed values.", METRIC, "--last"),
    minimize: bool | None = option(
        None, "A smaller metric is better, or a larger one.", METRIC, "--minimize/--maximize", shown="by name"
    ),
    unit: str = option("", "Unit of the metric, for the verdict.", METRIC, shown=False, rare=True),
    margin: float = option(0.0, "Least difference that matters, in the metric's unit.", TEST),
    chance: float | None = option(
        None, "Score of guessing, which a command must beat.", TEST, shown=False, rare=True
    ),
    seeds: int = option(10, "Number of seeds of each command.", TEST),
    seed: int | None = option(None, "First seed.", TEST, shown="random"),
    sequential: bool = option(
        True, "Stop as soon as the verdict is certain.", TEST, "--sequential/--no-sequential"
    ),
    equal: str = option("time", "time: better must not take longer. none: any time is fair.", TEST),
    name: str | None = option(None, "Name of the comparison.", shown="the time"),
    resume: str | None = option(
        None, "Name of a comparison to resume. Failed runs are repeated.", shown=False
    ),
    cpus_per_trial: float = option(1, "CPU cores of each run.", RESOURCES, rare=True),
    gpus_per_trial: float | None = option(
        None, "GPUs of each run; default 1 if the cluster has any.", RESOURCES, shown=False, rare=True
    ),
    resource: list[str] | None = option(
        None, "Custom Ray resource of each run, NAME=AMOUNT.", RESOURCES, rare=True
    ),
    label: list[str] | None = option(
        None, "Label of the nodes that may run commands, KEY=VALUE.", RESOURCES, rare=True
    ),
    concurrent: int | None = option(
        None, "Maximum number of runs at once.", RESOURCES, shown="as many as fit", rare=True
    ),
    storage: str = STORAGE_OPTION,
    callbacks: list[str] | None = CALLBACK_OPTION,
    as_json: bool = JSON_OPTION,
) -> None:
    """Compare training commands in any language with fresh seeds.

    Exit code: 0 better, 1 not shown, 2 mistake or failed run, 3 worse.
    """
    from automl.tasks.command.referee import resume_referee, run_referee

    if resume is not None:
        only(context, "resume", "storage", "as_json")
        result = resume_referee(resume, storage=storage)
    else:
        if baseline is None or metric is None or not candidate:
            missing = "--baseline" if baseline is None else "--metric" if metric is None else "--candidate"
            raise InputError(
                f"automl referee needs {missing}, as in: automl referee --baseline 'python train.py --seed "
                f"{{seed}}' --candidate 'python train.py --wide --seed {{seed}}' --metric 'accuracy=(.*)'"
            )
        result = run_referee(baseline, candidate, **passed_on(context, "baseline", "candidate", "resume"))
    print_confirm(result, storage)
    if as_json:
        print_json(result.value)
    verdict = result.verdict
    is_mistake = verdict.is_constant or (not verdict.complete and bool(result.logs))
    if is_mistake or verdict.final != "better":
        sys.exit(2 if is_mistake else CODES.get(str(verdict.final), 1))
