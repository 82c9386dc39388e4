"""`automl referee`."""

import sys
from typing import Annotated

import typer

from attention import InputError
from automl.cli.confirm_command import print_confirm
from automl.cli.json_output import print_json
from automl.cli.options import CallbackOption, Json, StorageOption, describe, only

CODES = {"better": 0, "worse": 3}  # exit codes; 1 for other outcomes, 2 for mistakes and failed runs
METRIC, TEST, RESOURCES = "Metric", "Comparison", "Resources"


def referee(
    context: typer.Context,
    baseline: Annotated[
        str | None,
        describe("Command to compare with. {seed} is the seed, {out} a folder of the run.", shown=False),
    ] = None,
    candidate: Annotated[
        list[str] | None, describe("Command that may be better. Repeatable.", shown=False)
    ] = None,
    metric: Annotated[
        str | None,
        describe(
            "Regular expression with a group, or key of a JSON line, in the output.", METRIC, shown=False
        ),
    ] = None,
    metric_file: Annotated[
        str | None, describe("CSV or JSON file below {out} with that column or key.", METRIC, shown=False)
    ] = None,
    last: Annotated[bool, describe("Use the last of several printed values.", METRIC, "--last")] = False,
    minimize: Annotated[
        bool | None,
        describe(
            "A smaller metric is better, or a larger one.", METRIC, "--minimize/--maximize", shown="by name"
        ),
    ] = None,
    unit: Annotated[
        str, describe("Unit of the metric, for the verdict.", METRIC, shown=False, rare=True)
    ] = "",
    margin: Annotated[float, describe("Least difference that matters, in the metric's unit.", TEST)] = 0.0,
    chance: Annotated[
        float | None, describe("Score of guessing, which a command must beat.", TEST, shown=False, rare=True)
    ] = None,
    seeds: Annotated[int, describe("Number of seeds of each command.", TEST)] = 10,
    seed: Annotated[int | None, describe("First seed.", TEST, shown="random")] = None,
    sequential: Annotated[
        bool, describe("Stop as soon as the verdict is certain.", TEST, "--sequential/--no-sequential")
    ] = True,
    equal: Annotated[
        str, describe("time: better must not take longer. none: any time is fair.", TEST)
    ] = "time",
    name: Annotated[str | None, describe("Name of the comparison.", shown="the time")] = None,
    resume: Annotated[
        str | None, describe("Name of a comparison to resume. Failed runs are repeated.", shown=False)
    ] = None,
    cpus_per_trial: Annotated[float, describe("CPU cores of each run.", RESOURCES, rare=True)] = 1,
    gpus_per_trial: Annotated[
        float | None,
        describe("GPUs of each run; default 1 if the cluster has any.", RESOURCES, shown=False, rare=True),
    ] = None,
    resource: Annotated[
        list[str] | None, describe("Custom Ray resource of each run, NAME=AMOUNT.", RESOURCES, rare=True)
    ] = None,
    label: Annotated[
        list[str] | None,
        describe("Label of the nodes that may run commands, KEY=VALUE.", RESOURCES, rare=True),
    ] = None,
    concurrent: Annotated[
        int | None, describe("Maximum number of runs at once.", RESOURCES, shown="as many as fit", rare=True)
    ] = None,
    storage: StorageOption = "searches",
    callback: CallbackOption = None,
    as_json: Json = False,
) -> None:
    """Compare training commands in any language with fresh seeds.

    Exit code: 0 better, 1 not shown, 2 mistake or failed run, 3 worse.
    """
    from automl.confirm.run_referee import resume_referee, run_referee

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
        result = run_referee(
            baseline,
            candidate,
            metric=metric,
            metric_file=metric_file,
            last=last,
            minimize=minimize,
            unit=unit,
            margin=margin,
            chance=chance,
            seeds=seeds,
            seed=seed,
            sequential=sequential,
            equal=equal,
            name=name,
            storage=storage,
            callbacks=callback or (),
            cpus_per_trial=cpus_per_trial,
            gpus_per_trial=gpus_per_trial,
            resource=resource or (),
            label=label or (),
            concurrent=concurrent,
        )
    print_confirm(result, storage)
    if as_json:
        print_json(result.value)
    verdict = result.verdict
    is_mistake = verdict.is_constant or (not verdict.complete and bool(result.logs))
    if is_mistake or verdict.final != "better":
        sys.exit(2 if is_mistake else CODES.get(str(verdict.final), 1))
