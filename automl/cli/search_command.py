"""`automl search`."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attention import InputError
from automl.cli.json_output import print_json
from automl.cli.options import (
    CallbackOption,
    CompileOption,
    Json,
    PrecisionOption,
    StorageOption,
    describe,
    only,
)
from automl.cli.search_words import print_search
from automl.config.escape import printable
from search.serialise import to_json

# The groups of the options in `automl search --help`.
WHAT, HOW, LONG = "What is searched", "How each trial is trained", "How the search goes"
LIMITS, WHERE, KEPT = "Limits", "Where trials run", "What is kept"
NEW_WEIGHTS = (
    "new ones; few photographs learn more from trained ones: --backbone torchvision:resnet18 "
    "--weights default, or --weights FILE"
)

# Options that are no fields of Settings.
NOT_SETTINGS = {
    "trials", "resume", "init_from", "dry_run", "as_json", "save_config", "confirm", "top", "seeds",
    "callback",
}  # fmt: skip

if TYPE_CHECKING:
    from automl.search.result import SearchResult


def search(
    context: typer.Context,
    space: Annotated[
        str | None, describe("See automl spaces; or file.py:function.", WHAT, shown="fits --data")
    ] = None,
    backbone: Annotated[
        str | None, describe("xresnet34, torchvision:NAME, timm:NAME, file.py:Net.", WHAT, shown=False)
    ] = None,
    weights: Annotated[
        str | None, describe("To start from: default (published), or a file.", WHAT, shown=False)
    ] = None,
    init_from: Annotated[
        str | None,
        describe(
            "Start every trial from these weights: a run's ID, or the folder of a trial or export.",
            WHAT,
            shown=False,
            rare=True,
        ),
    ] = None,
    data: Annotated[
        str | None, describe("Folder or archive of images, sequences or code.", WHAT, shown=False)
    ] = None,
    trials: Annotated[str | None, describe("How many configurations to try.", LONG, shown="16")] = None,
    budget: Annotated[str | None, describe("Time to search for, such as 30m or 2h.", LONG)] = None,
    epochs: Annotated[
        int | None,
        describe(
            "Of a whole trial, in the baseline's time.",
            LONG,
            shown="the space's, or about 300 steps of --data",
        ),
    ] = None,
    size: Annotated[int | None, describe("Side of the images in pixels.", WHAT)] = None,
    subset: Annotated[float, describe("Stratified fraction of the images.", WHAT, rare=True)] = 1.0,
    batch_size: Annotated[
        int | None, describe("Instead of the space's.", HOW, shown=False, rare=True)
    ] = None,
    mixup: Annotated[
        float | None, describe("Alpha of mixup, instead of the space's; 0: off.", HOW, shown=False, rare=True)
    ] = None,
    flip: Annotated[
        bool | None, describe("Mirror images.", HOW, "--flip/--no-flip", shown="of photographs", rare=True)
    ] = None,
    augment: Annotated[
        str | None,
        describe("light, standard or strong, instead of the space's.", HOW, shown=False, rare=True),
    ] = None,
    class_weights: Annotated[
        str | None,
        describe("Of the loss: none or balanced, instead of the space's.", HOW, shown=False, rare=True),
    ] = None,
    name: Annotated[str | None, describe("Name of the search.", KEPT)] = None,
    resume: Annotated[str | None, describe("This search; auto: --name if it is there.", KEPT)] = None,
    warm_start: Annotated[
        str | None,
        describe("Initialise the sampler with the trials of this earlier search.", LONG, rare=True),
    ] = None,
    seed: Annotated[int, describe("Of the sampler and of every trial.", LONG)] = 0,
    test: Annotated[
        bool, describe("With --sampler grid, score the test split, too.", LONG, "--test", rare=True)
    ] = False,
    equal: Annotated[
        str, describe("Budget held equal across trials: time or epochs.", HOW, rare=True)
    ] = "time",
    init: Annotated[
        str, describe("Start from: scratch, or a shared partial training that trials share.", HOW, rare=True)
    ] = "scratch",
    shared_trainings: Annotated[int, describe("With --init shared, how many at first.", HOW, rare=True)] = 3,
    sampler: Annotated[
        str,
        describe("auto, tpe, placement, random, gp, nsga2, cmaes, grid or module:Sampler.", LONG, rare=True),
    ] = "auto",
    metric: Annotated[
        str | None, describe("accuracy, balanced_accuracy, macro_f1, auc, loss.", WHAT, shown="the task's")
    ] = None,
    objective: Annotated[
        str | None,
        describe("One to three of the metric, latency, params, macs, with commas.", LONG, rare=True),
    ] = None,
    baseline_share: Annotated[
        float, describe("Part of the trials that tunes the plain backbone.", LONG, rare=True)
    ] = 0.2,
    max_params: Annotated[
        str | None, describe("Maximum number of parameters, such as 5M.", LIMITS, rare=True)
    ] = None,
    max_macs: Annotated[
        str | None, describe("Maximum MACs for one input, such as 2G.", LIMITS, rare=True)
    ] = None,
    max_memory: Annotated[
        str | None, describe("Maximum memory of a training step, such as 4GB.", LIMITS, rare=True)
    ] = None,
    max_latency_ms: Annotated[
        float | None, describe("Maximum latency of one input, in ms.", LIMITS, rare=True)
    ] = None,
    keep: Annotated[
        int,
        describe(
            "Number of best trials whose checkpoints are kept; with several objectives, the front is.",
            KEPT,
            rare=True,
        ),
    ] = 3,
    cpus_per_trial: Annotated[float, describe("CPU cores of each worker.", WHERE)] = 1,
    gpus_per_trial: Annotated[
        float | None, describe("GPUs of each worker; 1 if there are any.", WHERE, shown=False, rare=True)
    ] = None,
    workers_per_trial: Annotated[int, describe("Processes of one trial, data-parallel.", WHERE)] = 1,
    resource: Annotated[
        list[str] | None,
        describe("Custom Ray resource of each worker, NAME=AMOUNT; may be repeated.", WHERE, rare=True),
    ] = None,
    label: Annotated[
        list[str] | None,
        describe("Label of the nodes to train on, KEY=VALUE; may be repeated.", WHERE, rare=True),
    ] = None,
    concurrent: Annotated[
        int | None, describe("Most trials at once; requested from Ray.", WHERE, shown="as there is room")
    ] = None,
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    storage: StorageOption = "searches",
    callback: CallbackOption = None,
    confirm: Annotated[
        bool, describe("Then confirm the finalists, in the same Ray.", LONG, "--confirm", rare=True)
    ] = False,
    top: Annotated[
        int | None, describe("With --confirm, number of finalists.", LONG, shown="3", rare=True)
    ] = None,
    seeds: Annotated[
        int | None,
        describe(
            "Of each cell with --sampler grid; of each variant with --confirm.",
            LONG,
            shown="1; 10",
            rare=True,
        ),
    ] = None,
    dry_run: Annotated[bool, describe("Estimate cost and power; search nothing.", None, "--dry-run")] = False,
    as_json: Json = False,
) -> None:
    """Search a space: which attention, how many modules, where, with which hyperparameters."""
    if sys.stderr.isatty():  # the next words come seconds later
        print("loading PyTorch and Ray ...", file=sys.stderr, flush=True)
    from automl.config.settings import SCHEDULING_OPTIONS, Settings

    if top is not None and not confirm:
        raise InputError("--top is of a confirmation; add --confirm, or leave it out")
    if confirm and sampler == "grid" and seeds is not None:
        raise InputError(
            "--seeds is of the grid's cells with --sampler grid and of a confirmation with --confirm; leave "
            "--confirm out, and confirm afterwards with automl confirm --seeds N"
        )
    options: dict[str, Any] = {k: v for k, v in (("top", top), ("seeds", seeds)) if v is not None}
    grid_seeds = None if confirm else seeds
    if confirm:
        from automl.confirm.protocol import Options

        Options(**options)  # a mistake shows before the search, and not after it
    auto = resume == "auto"
    if resume is not None and not auto:
        may_change = {"callback" if key == "callbacks" else key: key for key in SCHEDULING_OPTIONS}
        allowed = ("resume", "space", "trials", "budget", "storage", "as_json", "confirm", "top", "seeds")
        only(context, *allowed, *may_change)
        from automl.search.run_search import resume_search

        scheduling = {
            key: value
            for name, key in may_change.items()
            if (value := context.params[name]) not in (None, ())
        }
        begin = partial(
            resume_search,
            resume,
            storage=storage,
            space=space,
            trials=trials,
            seeds=grid_seeds,
            budget=budget,
            scheduling=scheduling,
        )
    else:
        if space is None and data is None:
            raise InputError(
                "say what to search: --data PHOTOS, --space digits, or --resume NAME to resume a search"
            )
        if trials is not None and not trials.removeprefix("-").isdecimal():
            raise InputError(f"--trials must be a number; got {trials!r} (+N needs --resume)")
        given = {key: value for key, value in context.params.items() if key not in NOT_SETTINGS}
        if space is None:
            from automl.search.default_space import fit

            fitting = fit(given["data"], backbone=backbone, size=size)
            given |= fitting.settings
            if fitting.why:
                print(f"chosen    {fitting.why}", file=sys.stderr)
            if given["space"] == "folder" and weights is None and init_from is None:
                print(f"weights   {NEW_WEIGHTS}", file=sys.stderr)
        if init_from is not None:
            given["weights"] = _backbone_of(init_from, weights)
        given["callbacks"] = callback
        given["seeds"] = 1 if grid_seeds is None else grid_seeds
        settings = Settings(**given, trials=None if trials is None else int(trials))
        if dry_run:
            from automl.cli.preview import preview

            forecast = preview(settings, lambda text: print(f"{text} ...", file=sys.stderr, flush=True))
            for line in forecast.lines():
                print(printable(line))
            if as_json:
                print_json(to_json(forecast))
            return
        from automl.search.run_search import start_or_resume, start_search

        begin = partial(start_or_resume if auto else start_search, settings)
    if confirm:
        from cluster.connect import keep_ray

        with keep_ray():
            result = begin()
            print_search(result, storage)
            found = {} if result.best is None else _confirm(result, space, storage, callback, options)
    else:
        result, found = begin(), {}
        print_search(result, storage)
    if as_json:
        print_json({**to_json(result), **found})
    if result.best is None or result.missing:
        sys.exit(1)


def _confirm(
    result: "SearchResult",
    space: str | None,
    storage: str,
    callback: Sequence[str] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Confirm a search as `automl confirm` does, and return the verdict for `--json`."""
    from automl.cli.confirm_command import print_confirm
    from automl.confirm.run_confirm import run_confirm

    confirmed = run_confirm(result.search, storage=storage, space=space, callbacks=callback, **options)
    print_confirm(confirmed, storage)
    return {"confirmation": confirmed.value}


def _backbone_of(init_from: str, weights: str | None) -> str:
    """The folder or file that `--init-from` stands for."""
    if weights is not None:
        raise InputError("--weights and --init-from both say what trials start from; give one of them")
    if not re.fullmatch(r"[0-9a-f]{32}", init_from):
        return init_from
    from automl.tracking.runs import find_run

    return str(find_run(init_from).checkpoint)
