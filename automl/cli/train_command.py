"""`automl train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attention import InputError
from automl.cli.options import CompileOption, PrecisionOption, only
from automl.config.escape import shell

FITS = "what fits"
# The groups of the options in `automl train --help`.
WHAT, MODEL, HOW, KEPT = "Data", "Model", "Training", "What is kept"
# Of each dataset: side of the images, options of xresnet18, epochs; as its search space has them.
DEFAULTS: dict[str, tuple[int, dict[str, float], int]] = {"digits": (32, {"width": 0.25}, 6)}
OTHERS: tuple[int, dict[str, float], int] = (128, {}, 5)

if TYPE_CHECKING:
    from automl.tasks import Task
    from automl.trials.train import TrainResult
    from search.record import Metrics


def train(
    context: typer.Context,
    dataset: Annotated[
        str | None,
        typer.Option(help="digits, nette, woof or folder.", show_default="woof", rich_help_panel=WHAT),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder or archive of images.", rich_help_panel=WHAT)
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Side of the images in pixels.", show_default=FITS, rich_help_panel=WHAT),
    ] = None,
    subset: Annotated[
        float, typer.Option(help="Stratified fraction of the images.", hidden=True, rich_help_panel=WHAT)
    ] = 1.0,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="xresnet34, torchvision:NAME, timm:NAME, file.py:Net.",
            show_default="xresnet18",
            rich_help_panel=MODEL,
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            help="Multiplies the channels of an xresnet's stages.",
            show_default=FITS,
            hidden=True,
            rich_help_panel=MODEL,
        ),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="To start from: default (published), or a file.", show_default="new", rich_help_panel=MODEL
        ),
    ] = "",
    attention: Annotated[
        str | None, typer.Option(help="Its type, such as ssa or decomposed.", rich_help_panel=MODEL)
    ] = None,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="ssa-sym instead of ssa.", hidden=True, rich_help_panel=MODEL)
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            help="Its site; see automl sites.", show_default="end of stage 1", rich_help_panel=MODEL
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Of the attention, as NAME=VALUE.", rich_help_panel=MODEL)
    ] = None,
    epochs: Annotated[int | None, typer.Option(show_default=FITS, rich_help_panel=HOW)] = None,
    batch_size: Annotated[int, typer.Option(rich_help_panel=HOW)] = 64,
    learning_rate: Annotated[float, typer.Option("--learning-rate", "--lr", rich_help_panel=HOW)] = 3e-3,
    weight_decay: Annotated[float, typer.Option(hidden=True, rich_help_panel=HOW)] = 1e-2,
    optimizer: Annotated[str, typer.Option(help="adamw or sgd.", rich_help_panel=HOW)] = "adamw",
    schedule: Annotated[
        str, typer.Option(help="one-cycle, flat-cosine or warmup-cosine.", hidden=True, rich_help_panel=HOW)
    ] = "one-cycle",
    mixup: Annotated[
        float, typer.Option(help="Alpha of mixup; 0 is off.", hidden=True, rich_help_panel=HOW)
    ] = 0.0,
    label_smoothing: Annotated[float, typer.Option(hidden=True, rich_help_panel=HOW)] = 0.1,
    class_weights: Annotated[
        str, typer.Option(help="Of the loss: none or balanced.", hidden=True, rich_help_panel=HOW)
    ] = "none",
    metric: Annotated[
        str,
        typer.Option(
            help="Shown: accuracy, balanced_accuracy, macro_f1, auc or loss.",
            show_default="accuracy",
            hidden=True,
            rich_help_panel=HOW,
        ),
    ] = "",
    seed: Annotated[int, typer.Option(rich_help_panel=HOW)] = 0,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:N.", hidden=True, rich_help_panel=HOW)
    ] = "auto",
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    lr_find: Annotated[bool, typer.Option("--lr-find", help="Suggest a learning rate; don't train.")] = False,
    dump: Annotated[bool, typer.Option("--dump", help="Print the model; don't train.")] = False,
    log: Annotated[
        str | None, typer.Option(help="CSV file that gets one line an epoch.", rich_help_panel=KEPT)
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Of its folder and its run.", show_default="the time", rich_help_panel=KEPT),
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Continue the training of this name.", rich_help_panel=KEPT)
    ] = None,
    storage: Annotated[
        str, typer.Option(help="Folder for the checkpoint's folder.", rich_help_panel=KEPT)
    ] = "searches",
) -> None:
    """Train one configuration without a search."""
    from attention import Spec
    from automl.config.runtime import Runtime, find_device
    from automl.tasks import open_task
    from automl.training.lr_find import find_learning_rate, plot
    from automl.trials.train import place, resume_train, run_train
    from backbones import loading
    from search.config import TrialConfig

    runtime = Runtime(device=find_device(device), precision=precision, compile=compile)  # type: ignore[arg-type]
    if resume is not None:
        only(context, "resume", "log", "storage", "device", "precision", "compile")
        _print_result(resume_train(resume, runtime=runtime, log=log, storage=storage, tell=_print_epoch))
        return
    dataset = dataset or ("folder" if data else "woof")
    fit_size, fit_options, fit_epochs = DEFAULTS.get(dataset, OTHERS)
    config = TrialConfig.from_json(
        {
            "data": {
                "source": dataset,
                "path": data and str(Path(data).expanduser().resolve()),
                "size": fit_size if size is None else size,
                "subset": subset,
            },
            "model": {
                "backbone": loading.absolute(backbone or "xresnet18"),
                "options": ({} if backbone else fit_options) if width is None else {"width": width},
                **_chosen(weights),
            },
            "training": {
                "epochs": fit_epochs if epochs is None else epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "optimizer": optimizer,
                "schedule": schedule,
                "mixup": mixup,
                "label_smoothing": label_smoothing,
                "class_weights": class_weights,
            },
            "metric": metric,
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
    if dump:
        print(open_task(config, runtime).model())
    elif lr_find:
        test = find_learning_rate(open_task(config, runtime))
        plot(test, Path("lr_find.png"))
        print(f"suggested learning rate {test.suggestion:g}; the plot is lr_find.png")
    else:
        _print_result(
            run_train(config, runtime=runtime, log=log, storage=storage, name=name, tell=_print_epoch)
        )


def _print_result(result: "TrainResult") -> None:
    from automl.config.user_code import trust_option
    from automl.storage.trusted import is_remembered

    print(f"checkpoint {result.checkpoint}")
    if result.run_id is None:
        print("warning    MLflow has not taken the run, which automl export --run would name")
    else:
        trust = "" if is_remembered(result.user_code) else trust_option(result.user_code)
        export = f"automl export{trust} --run".split()
        out = f"exports/{result.checkpoint.parent.name}"
        print(f"next       {shell([*export, result.run_id, '--out', out])}")


def _chosen(weights: str) -> dict[str, str]:
    from automl.tasks.initial import choose_weights
    from search.config import PUBLISHED

    if weights in ("", PUBLISHED):
        return {"weights": weights}
    file, digest = choose_weights(weights)
    return {"weights": file, "weights_digest": digest}


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
