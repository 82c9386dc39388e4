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
SPACE, TRAINING, SEARCH = "Search space", "Training options", "Search options"
LIMITS, RESOURCES, STORAGE = "Limits", "Resources", "Storage"
NEW_WEIGHTS = (
    "random; with few photographs, pretrained weights score higher: --backbone torchvision:resnet18 "
    "--weights default, or --weights FILE"
)

# Options that are not fields of Settings.
NOT_SETTINGS = {
    "trials", "resume", "init_from", "dry_run", "as_json", "save_config", "confirm", "top", "seeds",
    "callback",
}  # fmt: skip

if TYPE_CHECKING:
    from automl.search.result import SearchResult


def search(
    ctx: typer.Context,
    space: Annotated[
        str | None, describe("Space: see automl spaces, or file.py:function.", SPACE, shown="by --data")
    ] = None,
    train: Annotated[
        str | None, describe("Your own training loop: file.py:function.", SPACE, shown=False)
    ] = None,
    backbone: Annotated[
        str | None, describe("xresnet34, torchvision:NAME, timm:NAME or file.py:Net.", SPACE, shown=False)
    ] = None,
    attention: Annotated[
        str | None, describe("Types to choose from: ssa,timm:se,file.py:Class.", SPACE, shown=False)
    ] = None,
    weights: Annotated[
        str | None, describe("Initial weights: default (published) or a file.", SPACE, shown=False)
    ] = None,
    init_from: Annotated[
        str | None,
        describe(
            "Initial weights: an MLflow run ID, or the folder of a trial or an export.",
            SPACE,
            shown=False,
            rare=True,
        ),
    ] = None,
    data: Annotated[
        str | None, describe("Folder or archive of images, series, code, text.", SPACE, shown=False)
    ] = None,
    trials: Annotated[str | None, describe("Number of configurations to try.", SEARCH, shown="16")] = None,
    budget: Annotated[str | None, describe("Time limit, such as 30m or 2h.", SEARCH)] = None,
    epochs: Annotated[
        int | None,
        describe(
            "Epochs of a whole trial, in the baseline's time.",
            SEARCH,
            shown="the space's, or about 300 steps of --data",
        ),
    ] = None,
    size: Annotated[int | None, describe("Side of the images [px], or tokens of a text.", SPACE)] = None,
    subset: Annotated[float, describe("Fraction of the data to use, stratified.", SPACE, rare=True)] = 1.0,
    batch_size: Annotated[
        int | None, describe("Batch size, instead of the space's.", TRAINING, shown=False, rare=True)
    ] = None,
    mixup: Annotated[
        float | None,
        describe("Alpha of mixup, instead of the space's; 0 is off.", TRAINING, shown=False, rare=True),
    ] = None,
    flip: Annotated[
        bool | None,
        describe(
            "Mirror images at random.", TRAINING, "--flip/--no-flip", shown="photographs only", rare=True
        ),
    ] = None,
    augment: Annotated[
        str | None,
        describe(
            "Augmentation, instead of the space's: light, standard or strong.",
            TRAINING,
            shown=False,
            rare=True,
        ),
    ] = None,
    class_weights: Annotated[
        str | None,
        describe(
            "Class weights of the loss, instead of the space's: none or balanced.",
            TRAINING,
            shown=False,
            rare=True,
        ),
    ] = None,
    name: Annotated[str | None, describe("Name of the search.", STORAGE, shown="space and time")] = None,
    resume: Annotated[str | None, describe("Resume this search; auto: --name if it exists.", STORAGE)] = None,
    warm_start: Annotated[
        str | None,
        describe("Name of an earlier search whose trials initialise the sampler.", SEARCH, rare=True),
    ] = None,
    prior: Annotated[
        str | None,
        describe("Earlier searches on other data, as a prior of placements: NAME,NAME.", SEARCH, rare=True),
    ] = None,
    seed: Annotated[int, describe("Seed of the sampler and of every trial.", SEARCH)] = 0,
    test: Annotated[
        bool, describe("With --sampler grid, also score the test split.", SEARCH, "--test", rare=True)
    ] = False,
    equal: Annotated[
        str, describe("Budget held equal across trials: time or epochs.", TRAINING, rare=True)
    ] = "time",
    init: Annotated[
        str,
        describe("Start of each trial: scratch, or shared (a shared partial training).", TRAINING, rare=True),
    ] = "scratch",
    shared_trainings: Annotated[
        int, describe("With --init shared, initial number of shared partial trainings.", TRAINING, rare=True)
    ] = 3,
    sampler: Annotated[
        str,
        describe("auto, tpe, placement, random, gp, nsga2, cmaes, grid, module:Sampler.", SEARCH, rare=True),
    ] = "auto",
    metric: Annotated[
        str | None, describe("accuracy, balanced_accuracy, macro_f1, auc or loss.", SPACE, shown="the task's")
    ] = None,
    minimize: Annotated[
        bool | None,
        describe(
            "With --train, a lower metric is better, or a higher one.",
            SPACE,
            "--minimize/--maximize",
            shown="by name",
            rare=True,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        describe("With --train, the smallest difference that matters.", SPACE, shown=False, rare=True),
    ] = None,
    unit: Annotated[
        str | None, describe("With --train, the unit of the metric.", SPACE, shown=False, rare=True)
    ] = None,
    chance: Annotated[
        float | None, describe("With --train, the score of guessing.", SPACE, shown=False, rare=True)
    ] = None,
    objective: Annotated[
        str | None,
        describe("Comma-separated list of 1 to 3: the metric, latency, params, macs.", SEARCH, rare=True),
    ] = None,
    baseline_share: Annotated[
        float, describe("Fraction of the trials that tune the baseline.", SEARCH, rare=True)
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
        float | None, describe("Maximum latency of one input or decoded token, in ms.", LIMITS, rare=True)
    ] = None,
    max_cache: Annotated[
        str | None,
        describe("Maximum memory of a decoder's keys, values and states, such as 16MB.", LIMITS, rare=True),
    ] = None,
    context: Annotated[
        int | None,
        describe("Tokens at which the cost of decoding counts.", LIMITS, "--context", shown=False, rare=True),
    ] = None,
    full: Annotated[
        int | None, describe("Number of full layers of a hybrid decoder.", SPACE, shown=False, rare=True)
    ] = None,
    vocabulary: Annotated[
        int | None,
        describe("Size of the tokenizer of texts or code; 0: bytes.", SPACE, shown=False, rare=True),
    ] = None,
    distil: Annotated[
        float | None,
        describe("Weight of a decoder's original predictions in the loss.", SPACE, shown=False, rare=True),
    ] = None,
    keep: Annotated[
        int,
        describe(
            "Number of best trials whose checkpoints are kept; with several objectives, the Pareto front.",
            STORAGE,
            rare=True,
        ),
    ] = 3,
    cpus_per_trial: Annotated[float, describe("CPU cores of each worker.", RESOURCES)] = 1,
    gpus_per_trial: Annotated[
        float | None,
        describe("GPUs of each worker; default 1 if the cluster has any.", RESOURCES, shown=False, rare=True),
    ] = None,
    workers_per_trial: Annotated[int, describe("Data-parallel processes of a trial.", RESOURCES)] = 1,
    resource: Annotated[
        list[str] | None,
        describe("Custom Ray resource of each worker, NAME=AMOUNT; may be repeated.", RESOURCES, rare=True),
    ] = None,
    label: Annotated[
        list[str] | None,
        describe("Label of the nodes to train on, KEY=VALUE; may be repeated.", RESOURCES, rare=True),
    ] = None,
    stop: Annotated[
        str | None,
        describe(
            "Early end: decided (once placements are compared with certainty) or never.",
            SEARCH,
            shown="never; decided with --init shared",
            rare=True,
        ),
    ] = None,
    concurrent: Annotated[
        int | None, describe("Maximum number of trials at once.", RESOURCES, shown="as many as fit")
    ] = None,
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    storage: StorageOption = "searches",
    callback: CallbackOption = None,
    confirm: Annotated[
        bool,
        describe(
            "Confirm the finalists afterwards, in the same Ray session.", SEARCH, "--confirm", rare=True
        ),
    ] = False,
    top: Annotated[
        int | None, describe("Number of finalists, with --confirm.", SEARCH, shown="3", rare=True)
    ] = None,
    seeds: Annotated[
        int | None,
        describe(
            "Seeds of each cell with --sampler grid, or of each variant with --confirm.",
            SEARCH,
            shown="1; 10",
            rare=True,
        ),
    ] = None,
    dry_run: Annotated[
        bool, describe("Estimate cost and power without training.", None, "--dry-run")
    ] = False,
    as_json: Json = False,
) -> None:
    """Search for the best attention types, sites and hyperparameters."""
    if sys.stderr.isatty():  # the imports take seconds
        print("loading PyTorch and Ray ...", file=sys.stderr, flush=True)
    from automl.config.settings import SCHEDULING_OPTIONS, Settings

    if top is not None and not confirm:
        raise InputError(f"--top {top} needs --confirm; add --confirm, or leave --top out")
    if confirm and sampler == "grid" and seeds is not None:
        raise InputError(
            f"--seeds {seeds} is ambiguous with both --sampler grid and --confirm; leave --confirm out, and "
            f"confirm afterwards with automl confirm --seeds N"
        )
    options: dict[str, Any] = {k: v for k, v in (("top", top), ("seeds", seeds)) if v is not None}
    grid_seeds = None if confirm else seeds
    if confirm:
        from automl.confirm.protocol import Options

        Options(**options)  # check them before the search
    auto = resume == "auto"
    if resume is not None and not auto:
        may_change = {"callback" if key == "callbacks" else key: key for key in SCHEDULING_OPTIONS}
        allowed = ("resume", "space", "trials", "budget", "storage", "as_json", "confirm", "top", "seeds")
        only(ctx, *allowed, *may_change)
        from automl.search.run_search import resume_search

        scheduling = {
            key: value for name, key in may_change.items() if (value := ctx.params[name]) not in (None, ())
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
        if space is None and data is None and train is None:
            raise InputError(
                "--space, --data or --train is missing; give --data PHOTOS, --space digits, --train "
                "train.py:train, or --resume NAME to resume a search"
            )
        if trials is not None and not trials.removeprefix("-").isdecimal():
            raise InputError(f"--trials must be a number; got {trials!r}. +N needs --resume")
        values = {key: value for key, value in ctx.params.items() if key not in NOT_SETTINGS}
        if train is not None:
            values["space"] = space or ""
        elif space is None:
            from automl.search.default_space import fit

            # These options say that a language model is wanted.
            is_text = (backbone or "").startswith("hf:") or {full, max_cache, context, distil} != {None}
            default = fit(values["data"], backbone=backbone, size=size, is_text=is_text)
            values |= default.settings
            if default.why:
                print(f"chosen    {default.why}", file=sys.stderr)
            if values["space"] == "folder" and weights is None and init_from is None:
                print(f"weights   {NEW_WEIGHTS}", file=sys.stderr)
        if init_from is not None:
            values["weights"] = _weights_of(init_from, weights)
        values["callbacks"] = callback
        values["seeds"] = 1 if grid_seeds is None else grid_seeds
        settings = Settings(**values, trials=None if trials is None else int(trials))
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
        from automl.tracking.process import prepared
        from cluster.connect import keep_ray

        with prepared(), keep_ray():
            result = begin()
            print_search(result, storage)
            confirmed = {} if result.best is None else _confirm(result, space, storage, callback, options)
    else:
        result, confirmed = begin(), {}
        print_search(result, storage)
    if as_json:
        print_json({**to_json(result), **confirmed})
    if result.best is None or result.missing:
        sys.exit(1)


def _confirm(
    result: "SearchResult",
    space: str | None,
    storage: str,
    callback: Sequence[str] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Confirm the search. Return the verdict for `--json`."""
    from automl.cli.confirm_command import print_confirm
    from automl.confirm.run_confirm import run_confirm

    confirmed = run_confirm(result.search, storage=storage, space=space, callbacks=callback, **options)
    print_confirm(confirmed, storage)
    return {"confirmation": confirmed.value}


def _weights_of(init_from: str, weights: str | None) -> str:
    """Return the folder or file of `--init-from`."""
    if weights is not None:
        raise InputError("--weights and --init-from both set the initial weights; give one of them")
    if not re.fullmatch(r"[0-9a-f]{32}", init_from):
        return init_from
    from automl.tracking.runs import find_run

    return str(find_run(init_from).checkpoint)
