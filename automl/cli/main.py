"""The command line. Each command is one documented function of ours, with its arguments as options."""

import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attention import ATTENTIONS, InputError, Spec
from automl.storage.addresses import public

if TYPE_CHECKING:
    from automl.confirm.run import ConfirmResult
    from automl.search.result import SearchResult, TrialResult
    from automl.tasks import Task
    from search.record import Metrics

# Commands import what they run: Ray, MLflow and fastai take seconds each, and `automl --help` needs none.
app = typer.Typer(
    name="automl",
    help="Search where attention goes in your network, and prove that it helps.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="End standard output with one JSON object.")]
DataPath = Annotated[
    str | None, typer.Option(help="A folder or archive of images to read instead of downloading.")
]


StorageOption = Annotated[
    str, typer.Option(help="Folder of the searches' folders, or its address: s3://, gs://, ...")
]
PrecisionOption = Annotated[str, typer.Option(help="auto, bf16, fp16 or fp32.")]
CompileOption = Annotated[str, typer.Option(help="How steps are run: auto, off, graphs or inductor.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Mistakes in the input end with one message and exit code 2."""
    # What libraries deprecate is no news for who runs a search. A search's log has it all the same.
    for category in (DeprecationWarning, FutureWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        app(arguments)
    except InputError as error:
        print(f"error: {public(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except Exception:  # a defect; what libraries raise may name the address of a server
        print(public(traceback.format_exc()), end="", file=sys.stderr)
        sys.exit(1)


@app.command()
def search(
    context: typer.Context,
    space: Annotated[
        str | None, typer.Option(help="digits, nette, woof, file.py:function or module:function.")
    ] = None,
    data: DataPath = None,
    trials: Annotated[
        str | None, typer.Option(help="How many configurations to try; 16 if there is no --budget.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Time to search for, such as 30m or 2h.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of a trial that is not cut, in the baseline's time.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the images in pixels.")] = None,
    subset: Annotated[float, typer.Option(help="Stratified fraction of the images.")] = 1.0,
    name: Annotated[str | None, typer.Option(help="Name of the search.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with the search of this name; auto: of --name, or begin it.")
    ] = None,
    warm_start: Annotated[
        str | None, typer.Option(help="Know the results of this search from the start.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the sampler and of every trial.")] = 0,
    equal: Annotated[str, typer.Option(help="What trials get the same of: time or epochs.")] = "time",
    sampler: Annotated[
        str, typer.Option(help="tpe, random, gp, nsga2, cmaes, grid or module:Sampler.")
    ] = "tpe",
    objective: Annotated[
        str | None, typer.Option(help="One to three of the metric, latency, params, macs, with commas.")
    ] = None,
    baseline_share: Annotated[
        float, typer.Option(help="Part of the trials that tunes the plain backbone.")
    ] = 0.2,
    max_params: Annotated[str | None, typer.Option(help="Most parameters, such as 5M.")] = None,
    max_macs: Annotated[str | None, typer.Option(help="Most multiply-adds of one image, such as 2G.")] = None,
    max_memory: Annotated[str | None, typer.Option(help="Most memory of a step, such as 4GB.")] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Longest forward pass of one image, in ms.")
    ] = None,
    keep: Annotated[int, typer.Option(help="Of how many of the best trials to keep the checkpoints.")] = 3,
    cpus_per_trial: Annotated[float, typer.Option(help="CPU cores of a trial.")] = 1,
    gpus_per_trial: Annotated[
        float | None, typer.Option(help="GPUs of a trial; 1 if there are any.", show_default=False)
    ] = None,
    workers_per_trial: Annotated[int, typer.Option(help="Processes that train one trial together.")] = 1,
    resource: Annotated[
        list[str] | None,
        typer.Option(help="The cluster's own, NAME=AMOUNT of each worker; may be repeated."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Of nodes to train on, KEY=VALUE; may be repeated.")
    ] = None,
    concurrent: Annotated[
        int | None,
        typer.Option(
            help="Trials at once at most, waiting for nodes to run them.", show_default="as there is room"
        ),
    ] = None,
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    storage: StorageOption = "searches",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Search a space: which attention, how many modules, where, with which hyperparameters."""
    from automl.config.settings import SCHEDULING_OPTIONS, Settings

    auto = resume == "auto"
    if resume is not None and not auto:
        _only(context, "resume", "space", "trials", "budget", "storage", "as_json", *SCHEDULING_OPTIONS)
        from automl.search.run import resume_search

        scheduling = {
            key: value for key in SCHEDULING_OPTIONS if (value := context.params[key]) not in (None, ())
        }
        result = resume_search(
            resume, storage=storage, space=space, trials=trials, budget=budget, scheduling=scheduling
        )
    else:
        if space is None:
            raise InputError("say what to search: --space digits, or --resume NAME to go on with a search")
        if trials is not None and not trials.isdecimal():
            raise InputError(f"--trials must be a number; got {trials!r} (+N goes with --resume)")
        given = {
            key: value
            for key, value in context.params.items()
            if key not in ("trials", "resume", "dry_run", "as_json")
        }
        settings = Settings(**given, trials=None if trials is None else int(trials))
        if dry_run:
            from automl.cli.preview import preview

            forecast = preview(settings)
            for line in forecast.lines():
                print(line)
            if as_json:
                print(json.dumps(forecast.to_json()))
            return
        from automl.search.run import run_search, start_or_resume

        result = start_or_resume(settings) if auto else run_search(settings)
    _print_search(result, storage)
    if as_json:
        print(json.dumps(result.to_json()))
    if result.best is None:
        sys.exit(1)


def _only(context: typer.Context, option: str, *allowed: str) -> None:
    """Refuses what was given beside `option` and cannot go with it."""
    for parameter, value in context.params.items():
        given = context.get_parameter_source(parameter)
        if given is not None and given.name == "COMMANDLINE" and parameter not in (option, *allowed):
            flag = parameter.replace("_", "-")
            raise InputError(
                f"--{flag} {value} cannot go with --{option}: a search keeps the settings it was made with. "
                f"Only --{', --'.join(a for a in allowed if a not in ('as_json', 'space'))} can be given."
            )


def _print_search(result: "SearchResult", storage: str) -> None:
    from automl.config.settings import command

    print(
        f"search {result.search}: {result.completed} trials complete, {result.pruned} pruned, "
        f"{result.infeasible} infeasible, {result.errors} errors, {result.seconds:.0f} s"
    )
    for title, trial in (("best", result.best), ("baseline", result.baseline)):
        if trial is None:
            print(f"{title:9} none was trained to its end")
        else:
            run = trial.run_id or "not in MLflow yet"
            print(f"{title:9} {trial.metric} {trial.value:.4f}  {_about(trial)}  (run {run})")
    if result.front:
        print(f"front     {len(result.front)} trials that no other one beats in everything")
        for trial in result.front:
            values = "  ".join(f"{name} {value:.4g}" for name, value in trial.objectives.items())
            print(f"          {values}  {_about(trial)}")
    for warning in result.warnings:
        print(f"warning: {warning}")
    if result.failure:
        print(f"error     {result.failure}; more in {result.folder}")
    if result.stopped:
        go_on = command("search --resume", result.search, storage)
        print(f"stopped   {result.running} trials are unfinished; {go_on}")
    if result.untracked:
        print(
            f"warning   MLflow lacks {result.untracked} trials or parts of them; when it answers again: "
            f"{command('sync', result.search, storage)}  (why is in {result.folder}/log.txt)"
        )
    if result.best is not None:
        print("next      mlflow ui")
        export = command("export --best --search", result.search, storage)
        print(f"          {export} --out exports/{result.search}")


def _about(trial: "TrialResult") -> str:
    model = trial.config["model"]
    where = ", ".join(f"{spec['type']} at {site}" for site, spec in model["placement"].items())
    return f"{model['backbone']}, {where or 'no attention'}"


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A search; the latest one if not given.")] = None,
    storage: StorageOption = "searches",
    as_json: Json = False,
) -> None:
    """Say how a search stands, from any terminal or machine that sees its folder."""
    from automl.cli.status import read_status

    found = read_status(name, storage)
    for line in found.lines():
        print(line)
    if as_json:
        print(json.dumps(found.to_json()))


@app.command()
def searches(storage: StorageOption = "searches", as_json: Json = False) -> None:
    """List the searches of a storage, the one that was worked on last first."""
    from automl.cli.searches import list_searches, searches_table

    found = list_searches(storage)
    for line in searches_table(found):
        print(line)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="A search.")],
    storage: StorageOption = "searches",
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
) -> None:
    """Delete a search: its study, its checkpoints, its confirmations and its report."""
    from automl.cli.remove import find_removable, run_remove

    found = find_removable(name, storage)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                f"automl remove asks on a terminal, and there is none; give --yes to delete {name}"
            )
        if not typer.confirm(f"Delete {found.said}?", err=True):
            print("nothing was deleted")
            return
    found = run_remove(name, storage)
    print(f"removed   {found.said}")
    print(f"stays     {found.stays}")


@app.command()
def confirm(
    search: Annotated[str | None, typer.Option(help="Its name; the latest search if not given.")] = None,
    top: Annotated[int | None, typer.Option(help="Finalists.", show_default="3")] = None,
    seeds: Annotated[int | None, typer.Option(help="Of each arm.", show_default="10")] = None,
    margin: Annotated[
        float | None, typer.Option(help="Least difference that matters, in points.", show_default="0.5")
    ] = None,
    sequential: Annotated[
        bool | None, typer.Option("--sequential", help="Stop adding seeds when the question is decided.")
    ] = None,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Train the winner without each of its modules, too.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="A new confirmation, on seeds that none has used.")
    ] = False,
    storage: StorageOption = "searches",
    as_json: Json = False,
) -> None:
    """Train finalists and the tuned baseline with fresh seeds, and say whether they are better."""
    from automl.confirm.run import run_confirm

    result = run_confirm(
        search,
        top=top,
        seeds=seeds,
        margin=margin,
        sequential=sequential,
        ablate=ablate,
        again=again,
        storage=storage,
    )
    _print_confirm(result, storage)
    if as_json:
        print(json.dumps(result.value))
    if not result.verdict.complete:
        sys.exit(1)


def _print_confirm(result: "ConfirmResult", storage: str) -> None:
    from automl.config.settings import command

    verdict = result.verdict
    which = f" (confirmation {result.number})" if result.number > 1 else ""
    print(f"confirmed {result.search}{which}: {verdict.said or 'no verdict'}")
    print(f"verdict   {verdict.sentence}")
    for comparison in result.value["comparisons"]:
        print(f"          {comparison['sentence']}")
    for remark in verdict.remarks:
        print(f"          {remark}")
    for warning in result.value["warnings"]:
        print(f"warning   {warning}")
    if result.untracked:
        sync = command("sync", result.search, storage)
        print(f"warning   MLflow lacks a part of this; when it answers again: {sync}")
    if not verdict.complete:
        go_on = command("confirm --search", result.search, storage)
        print(f"go on     {go_on}  (what went wrong is in {result.folder})")
    print(f"next      {command('report --search', result.search, storage)}")


@app.command()
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            help="Searches, SEARCH:ARM, or MLflow run ids with commas; the first is the reference, and if it "
            "is alone, the latest search is compared with it."
        ),
    ],
    margin: Annotated[float, typer.Option(help="Least difference that matters, in points.")] = 0.5,
    storage: StorageOption = "searches",
    as_json: Json = False,
) -> None:
    """Compare trained models with the first of them, with the statistics of a confirmation."""
    from automl.confirm.compare import run_compare

    found = run_compare(names, margin=margin, storage=storage)
    for one in found:
        print(one.sentence)
    if as_json:
        print(json.dumps({"reference": names[0], "comparisons": [one.to_json() for one in found]}))


@app.command()
def sync(
    name: Annotated[str, typer.Argument(help="A search.")],
    storage: StorageOption = "searches",
) -> None:
    """Bring MLflow to where a search stands, after it could not be reached."""
    from automl.cli.sync import run_sync

    print(f"search {name}: {run_sync(name, storage)} trials are in MLflow")


@app.command()
def report(
    search: Annotated[str | None, typer.Option(help="Its name; the latest search if not given.")] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for the page and its plots.", show_default="in the search's")
    ] = None,
    storage: StorageOption = "searches",
) -> None:
    """Make one page of what a search found: the verdict, plots, trials, and how to repeat it."""
    from automl.report import run_report

    result = run_report(search, out=out, storage=storage)
    print(f"report    {result.index} ({result.index.stat().st_size / 1e6:.1f} MB, {len(result.plots)} plots)")
    if result.run_id is not None:
        print(f"MLflow    run {result.run_id}, artifacts in report/")


@app.command()
def train(
    dataset: Annotated[str, typer.Option(help="digits, nette, woof or folder.")] = "woof",
    data: DataPath = None,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 128,
    subset: Annotated[float, typer.Option(help="Stratified fraction of the images.")] = 1.0,
    backbone: Annotated[str, typer.Option(help="xresnet18, 34, 50, 101 or 152.")] = "xresnet18",
    width: Annotated[float, typer.Option(help="Multiplies the channels of the stages.")] = 1.0,
    attention: Annotated[str | None, typer.Option(help=f"{', '.join(ATTENTIONS)}.")] = None,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="ssa-sym instead of ssa.")] = False,
    where: Annotated[
        str | None, typer.Option(help="Its site; see automl sites.", show_default="end of stage 1")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="Of the attention, as NAME=VALUE.")] = None,
    epochs: int = 5,
    batch_size: int = 64,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr")] = 3e-3,
    weight_decay: float = 1e-2,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.")] = "adamw",
    schedule: Annotated[str, typer.Option(help="one-cycle or flat-cosine.")] = "one-cycle",
    mixup: Annotated[float, typer.Option(help="Alpha of mixup; 0 is off.")] = 0.0,
    label_smoothing: float = 0.1,
    seed: int = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    lr_find: Annotated[bool, typer.Option("--lr-find", help="Suggest a learning rate; don't train.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the model; don't train.")] = False,
    log: Annotated[str | None, typer.Option(help="CSV file that gets one line an epoch.")] = None,
    storage: Annotated[str, typer.Option(help="Folder for the checkpoint's folder.")] = "searches",
) -> None:
    """Train one configuration without a search."""
    from automl.config.runtime import Runtime, find_device
    from automl.tasks import open_task
    from automl.training.lr_find import find_learning_rate, plot
    from automl.trials.train import place, run_train
    from search.config import TrialConfig

    config = TrialConfig.from_json(
        {
            "data": {
                "source": dataset,
                "path": data and str(Path(data).expanduser().resolve()),
                "size": size,
                "subset": subset,
            },
            "model": {"backbone": backbone, "options": {"width": width}},
            "training": {
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "optimizer": optimizer,
                "schedule": schedule,
                "mixup": mixup,
                "label_smoothing": label_smoothing,
            },
            "seed": seed,
        }
    )
    if symmetric and attention != "ssa":
        raise InputError("--symmetric goes with --attention ssa alone")
    if attention is None and (where or option):
        raise InputError("--where and --option need an --attention")
    if attention is not None:
        spec = Spec("ssa-sym" if symmetric else attention, dict(_option(text) for text in option or []))
        config = place(config, spec, where)
    runtime = Runtime(device=find_device(device), precision=precision, compile=compile)  # type: ignore[arg-type]
    if dump:
        print(open_task(config, runtime).model())
    elif lr_find:
        test = find_learning_rate(open_task(config, runtime))
        plot(test, Path("lr_find.png"))
        print(f"suggested learning rate {test.suggestion:g}; the plot is lr_find.png")
    else:
        result = run_train(config, runtime=runtime, log=log, storage=storage, tell=_print_epoch)
        print(f"checkpoint {result.checkpoint}")
        print(f"next       automl export --run {result.run_id} --out exports/{result.checkpoint.parent.name}")


def _option(text: str) -> tuple[str, int | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--option takes NAME=VALUE; got {text!r}")
    return name, int(value) if value.isdigit() else value


def _print_epoch(task: "Task", metrics: "Metrics") -> None:
    shown = [name for name in ("train_loss", "loss", task.metric.name) if name in metrics]
    numbers = "  ".join(f"{name} {metrics[name]:.4f}" for name in shown)
    epoch = f"epoch {metrics['epoch']:.0f}/{task.config.training.epochs}"
    print(f"{epoch}  {numbers}  {metrics['seconds']:.1f} s", flush=True)


@app.command()
def export(
    out: Annotated[str, typer.Option(help="Folder for the exported model, or its address in a store.")],
    best: Annotated[
        bool, typer.Option("--best", help="The confirmed winner of a search, or else its best trial.")
    ] = False,
    search: Annotated[str | None, typer.Option(help="Its name; the latest search if not given.")] = None,
    run: Annotated[str | None, typer.Option(help="An MLflow run's id instead.")] = None,
    storage: StorageOption = "searches",
    quantize: Annotated[
        str | None, typer.Option(help="int8: a quantised ONNX model too, with what it costs in accuracy.")
    ] = None,
    register: Annotated[str | None, typer.Option(help="Name in MLflow's model registry.")] = None,
    alias: Annotated[
        str | None, typer.Option(help="The registered model's alias.", show_default="champion")
    ] = None,
) -> None:
    """Export a trained model as ONNX, torch.export, safetensors and an MLflow model, each checked."""
    from automl.export.run import run_export

    result = run_export(
        out,
        best=best,
        search=search,
        run=run,
        storage=storage,
        quantize=quantize,
        register_as=register,
        alias=alias,
    )
    print(f"exported  {result.folder} from {result.chosen.origin}")
    print(f"chosen    {result.chosen.choice}")
    print("test      " + ", ".join(f"{key} {value:.4f}" for key, value in result.test.items()))
    print("checked   " + ", ".join(f"{key} {value:.1e}" for key, value in result.differences.items()))
    for name, speed in result.speeds.items():
        print(
            f"speed     {name} {speed.latency:.3g} ms an input, {speed.throughput:,.0f} inputs/s in batches "
            f"of {speed.batch}"
        )
    print(f"          on {result.machine}")
    if result.quantized:
        print(f"{result.quantized.kind:9} {result.quantized}")
    if result.registered:
        print(f"registry  {result.registered.uri} is version {result.registered.version}")
    if isinstance(result.folder, Path):
        print(f"next      automl predict {out} IMAGE...")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="A folder that automl export made.")],
    images: Annotated[list[Path], typer.Argument(help="Image files of any size.")],
    as_json: Json = False,
) -> None:
    """Classify images with an exported model."""
    from automl.export.predict import run_predict

    predictions = run_predict(folder, images)
    for prediction in predictions:
        print(f"{prediction.image}: {prediction.label} ({prediction.probability:.1%})")
    if as_json:
        print(json.dumps([asdict(prediction) for prediction in predictions]))


@app.command()
def spaces() -> None:
    """List the search spaces."""
    from search.spaces import SPACES

    for space in SPACES.values():
        print(f"{space.name:8} {space.summary}")
    print("\nA space of your own: --space file.py:function or --space package.module:function")


@app.command()
def sites(
    backbone: Annotated[str, typer.Argument(help="A backbone, such as xresnet18.")],
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 128,
    width: Annotated[float, typer.Option(help="Multiplies the channels of the stages.")] = 1.0,
) -> None:
    """List a backbone's sites, with parameters and MACs of each attention at each site."""
    from automl.cli.sites import list_sites, sites_table

    for line in sites_table(list_sites(backbone, size=size, width=width)):
        print(line)


if __name__ == "__main__":
    main()
