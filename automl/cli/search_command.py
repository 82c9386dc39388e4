"""`automl search`."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attention import InputError
from automl.cli.json_output import print_json
from automl.cli.options import CallbackOption, CompileOption, Json, PrecisionOption, StorageOption, only
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
        str | None,
        typer.Option(
            help="See automl spaces; or file.py:function.",
            show_default="fits --data",
            rich_help_panel=WHAT,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="xresnet34, torchvision:NAME, timm:NAME, file.py:Net.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="To start from: default (published), or a file.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            help="Start every trial from the trunk of this: a run's ID, or the folder of a trial or export.",
            show_default=False,
            hidden=True,
            rich_help_panel=WHAT,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder or archive of images, sequences or code.", show_default=False, rich_help_panel=WHAT
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(
            help="How many configurations to try.",
            show_default="16",
            rich_help_panel=LONG,
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Time to search for, such as 30m or 2h.", rich_help_panel=LONG)
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Of a whole trial, in the baseline's time.",
            show_default="the space's, or about 300 steps of --data",
            rich_help_panel=LONG,
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side of the images in pixels.", rich_help_panel=WHAT)
    ] = None,
    subset: Annotated[
        float, typer.Option(help="Stratified fraction of the images.", hidden=True, rich_help_panel=WHAT)
    ] = 1.0,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Instead of the space's.", show_default=False, hidden=True, rich_help_panel=HOW),
    ] = None,
    mixup: Annotated[
        float | None,
        typer.Option(
            help="Alpha of mixup, instead of the space's; 0: off.",
            show_default=False,
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            help="Mirror images.",
            show_default="of photographs",
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="light, standard or strong, instead of the space's.",
            show_default=False,
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = None,
    class_weights: Annotated[
        str | None,
        typer.Option(
            help="Of the loss: none or balanced, instead of the space's.",
            show_default=False,
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the search.", rich_help_panel=KEPT)] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="This search; auto: --name if it is there.", rich_help_panel=KEPT),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(
            help="Initialise the sampler with the trials of this earlier search.",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampler and of every trial.", rich_help_panel=LONG)] = 0,
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="With --sampler grid, score the test split, too.",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = False,
    equal: Annotated[
        str,
        typer.Option(
            help="Budget held equal across trials: time or epochs.", hidden=True, rich_help_panel=HOW
        ),
    ] = "time",
    init: Annotated[
        str,
        typer.Option(
            help="Start from: scratch, or a trained trunk that trials share.",
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = "scratch",
    trunks: Annotated[
        int, typer.Option(help="With --init trunk, how many at first.", hidden=True, rich_help_panel=HOW)
    ] = 3,
    sampler: Annotated[
        str,
        typer.Option(
            help="auto, tpe, placement, random, gp, nsga2, cmaes, grid or module:Sampler.",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = "auto",
    metric: Annotated[
        str | None,
        typer.Option(
            help="accuracy, balanced_accuracy, macro_f1, auc, loss.",
            show_default="the task's",
            rich_help_panel=WHAT,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="One to three of the metric, latency, params, macs, with commas.",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = None,
    baseline_share: Annotated[
        float,
        typer.Option(
            help="Part of the trials that tunes the plain backbone.", hidden=True, rich_help_panel=LONG
        ),
    ] = 0.2,
    max_params: Annotated[
        str | None,
        typer.Option(help="Maximum number of parameters, such as 5M.", hidden=True, rich_help_panel=LIMITS),
    ] = None,
    max_macs: Annotated[
        str | None,
        typer.Option(help="Maximum MACs for one input, such as 2G.", hidden=True, rich_help_panel=LIMITS),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            help="Maximum memory of a training step, such as 4GB.", hidden=True, rich_help_panel=LIMITS
        ),
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option(help="Maximum latency of one input, in ms.", hidden=True, rich_help_panel=LIMITS),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            help="Number of best trials whose checkpoints are kept; with several objectives, the front is.",
            hidden=True,
            rich_help_panel=KEPT,
        ),
    ] = 3,
    cpus_per_trial: Annotated[
        float, typer.Option(help="CPU cores of each worker.", rich_help_panel=WHERE)
    ] = 1,
    gpus_per_trial: Annotated[
        float | None,
        typer.Option(
            help="GPUs of each worker; 1 if there are any.",
            show_default=False,
            hidden=True,
            rich_help_panel=WHERE,
        ),
    ] = None,
    workers_per_trial: Annotated[
        int, typer.Option(help="Processes of one trial, data-parallel.", rich_help_panel=WHERE)
    ] = 1,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            help="Custom Ray resource of each worker, NAME=AMOUNT; may be repeated.",
            hidden=True,
            rich_help_panel=WHERE,
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Label of the nodes to train on, KEY=VALUE; may be repeated.",
            hidden=True,
            rich_help_panel=WHERE,
        ),
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(
            help="Most trials at once; requested from Ray.",
            show_default="as there is room",
            rich_help_panel=WHERE,
        ),
    ] = None,
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    storage: StorageOption = "searches",
    callback: CallbackOption = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Then confirm the finalists, in the same Ray.",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = False,
    top: Annotated[
        int | None,
        typer.Option(
            help="With --confirm, number of finalists.", show_default="3", hidden=True, rich_help_panel=LONG
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Of each cell with --sampler grid; of each arm with --confirm.",
            show_default="1; 10",
            hidden=True,
            rich_help_panel=LONG,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate cost and power; search nothing.")
    ] = False,
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
        from automl.search.run import resume_search

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
            given["weights"] = _trunk(init_from, weights)
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
        from automl.search.run import start_or_resume, start_search

        begin = partial(start_or_resume if auto else start_search, settings)
    if confirm:
        from automl.tracking.process import prepared
        from cluster.connect import kept

        with kept(), prepared():
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
    from automl.confirm.run import run_confirm

    confirmed = run_confirm(result.search, storage=storage, space=space, callbacks=callback, **options)
    print_confirm(confirmed, storage)
    return {"confirmation": confirmed.value}


def _trunk(init_from: str, weights: str | None) -> str:
    """The folder or file that `--init-from` stands for."""
    if weights is not None:
        raise InputError("--weights and --init-from both say what trials start from; give one of them")
    if not re.fullmatch(r"[0-9a-f]{32}", init_from):
        return init_from
    from automl.tracking.runs import find_run

    return str(find_run(init_from).checkpoint)
