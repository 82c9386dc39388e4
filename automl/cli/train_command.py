"""`automl train`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from automl.base.errors import InputError
from automl.base.escape import shell
from automl.cli.options import COMPILE_OPTION, PRECISION_OPTION, only, option, split_option

FITS = "by data"
# The groups of the options in `automl train --help`.
CONFIGURATION, MODEL, TRAINING_OPTIONS, STORAGE = (
    "Configuration and data",
    "Model",
    "Training options",
    "Storage",
)
# Side of the images, options of xresnet18 and epochs of each dataset, as in its search space.
DEFAULTS: dict[str, tuple[int, dict[str, float], int]] = {"digits": (32, {"width": 0.25}, 6)}
OTHERS: tuple[int, dict[str, float], int] = (128, {}, 5)
TRAINING = ("batch_size", "learning_rate", "weight_decay", "optimizer", "schedule")
# Keys of a configuration, of any task, that options set.
KEYS: dict[str, str] = {
    "data": "data.path",
    "size": "data.size",
    "subset": "data.subset",
    "backbone": "model.backbone",
    "width": "model.options.width",
    **{name: f"training.{name}" for name in ("epochs", *TRAINING)},
    **{name: f"training.{name}" for name in ("mixup", "label_smoothing", "class_weights")},
    "metric": "metric",
    "seed": "seed",
}
# Metrics of an epoch that are not scores.
COURSE = frozenset(
    {
        "epoch",
        "resource",
        "steps",
        "train_loss",
        "train_accuracy",
        "learning_rate",
        "seconds",
        "processor_seconds",
        "time",
    }
)

if TYPE_CHECKING:
    from automl.tasks import Task
    from automl.trials.train import TrainResult
    from search.config import TrialConfig
    from search.record import Metrics


def train(
    context: typer.Context,
    space: str | None = option(None, "Train the baseline of this search space.", CONFIGURATION),
    like: str | None = option(None, "Train a search's best, or SEARCH:TRIAL.", CONFIGURATION),
    assigned: list[str] | None = option(
        None, "Set KEY=VALUE: heads=8, training.clip=1.", CONFIGURATION, "--set"
    ),
    dataset: str | None = option(
        None, "Dataset: digits, nette, woof, woof1 or folder.", CONFIGURATION, shown="woof"
    ),
    data: str | None = option(None, "Folder or archive of data.", CONFIGURATION),
    size: int | None = option(None, "Image side or tokens.", CONFIGURATION, shown=FITS),
    subset: float = option(1.0, "Fraction of the data to use, stratified.", CONFIGURATION, rare=True),
    backbone: str | None = option(None, "Backbone, such as timm:NAME.", MODEL, shown="xresnet18"),
    width: float | None = option(None, "Factor of the channels of an xresnet.", MODEL, shown=FITS, rare=True),
    weights: str = option("", "Initial weights: default or a file.", MODEL, shown="random"),
    attention: str | None = option(
        None, "Attention: a name of automl attentions, timm:NAME or file.py:Class.", MODEL
    ),
    symmetric: bool = option(False, "Use ssa-sym instead of ssa.", MODEL, "--symmetric"),
    where: str | None = option(None, "Attention site.", MODEL, shown="end of stage 1"),
    option: list[str] | None = option(None, "Option of the attention, NAME=VALUE.", MODEL),
    epochs: int | None = option(None, "Number of epochs.", TRAINING_OPTIONS, shown=FITS),
    batch_size: int = option(64, "Batch size.", TRAINING_OPTIONS),
    learning_rate: float = option(0.003, "Peak learning rate.", TRAINING_OPTIONS, "--learning-rate", "--lr"),
    weight_decay: float = option(0.01, "Weight decay.", TRAINING_OPTIONS, rare=True),
    optimizer: str = option("adamw", "Optimizer.", TRAINING_OPTIONS),
    schedule: str = option(
        "one-cycle", "Schedule, such as one-cycle or flat-cosine.", TRAINING_OPTIONS, rare=True
    ),
    mixup: float = option(0.0, "Mixup alpha; 0 is off.", TRAINING_OPTIONS),
    label_smoothing: float = option(0.1, "Label smoothing.", TRAINING_OPTIONS, rare=True),
    class_weights: str = option(
        "none", "Class weights of the loss: none or balanced.", TRAINING_OPTIONS, rare=True
    ),
    metric: str = option(
        "",
        "Metric to print: accuracy, balanced_accuracy, macro_f1, auc or loss.",
        TRAINING_OPTIONS,
        shown="accuracy",
        rare=True,
    ),
    seed: int = option(0, "Seed of the training.", TRAINING_OPTIONS),
    workers: int = option(1, "Data-parallel processes.", TRAINING_OPTIONS),
    gpu: int | None = option(None, "Number of the GPU.", TRAINING_OPTIONS),
    device: str = option("auto", "Device as PyTorch names it, or auto.", TRAINING_OPTIONS, rare=True),
    precision: str = PRECISION_OPTION,
    compile: str = COMPILE_OPTION,
    lr_find: bool = option(False, "Suggest a learning rate without training.", None, "--lr-find"),
    dump: bool = option(False, "Print the model without training.", None, "--dump"),
    log: str | None = option(None, "CSV file with one line per epoch.", STORAGE),
    name: str | None = option(None, "Name of the training.", STORAGE, shown="the time"),
    resume: str | None = option(None, "Resume the training of this name.", STORAGE),
    storage: str = option("searches", "Folder of all trainings.", STORAGE),
) -> None:
    """Train one configuration without a search."""
    from automl.config.device import find_device, gpu_with_number
    from automl.config.runtime import Runtime
    from automl.tasks import open_task
    from automl.training.lr_find import find_learning_rate, plot
    from automl.trials.train import resume_train, run_train

    if gpu is not None:
        if device != "auto":
            raise InputError(f"--gpu {gpu} and --device {device} both set the device; give one of them")
        device = gpu_with_number(gpu)
    runtime = Runtime(device=find_device(device), precision=precision, compile=compile)  # type: ignore[arg-type]
    if resume is not None:
        only(context, "resume", "log", "storage", "workers", "gpu", "device", "precision", "compile")
        result = resume_train(
            resume, runtime=runtime, log=log, storage=storage, tell=_print_epoch, workers=workers
        )
        _print_result(result)
        return
    if symmetric and attention != "ssa":
        raise InputError(f"--symmetric needs --attention ssa; got {attention}")
    if attention is None and (where or option):
        raise InputError("--where and --option need --attention; add --attention TYPE")
    if (space is not None) + (like is not None) + (dataset is not None) > 1:
        raise InputError("--space, --like and --dataset exclude each other; give one of them")
    config = read_config(context)
    if dump:
        print(open_task(config, runtime).model())
    elif lr_find:
        test = find_learning_rate(open_task(config, runtime))
        plot(test, Path("lr_find.png"))
        print(f"suggested learning rate {test.suggestion:g}; the plot is lr_find.png")
    else:
        _print_result(
            run_train(
                config,
                runtime=runtime,
                log=log,
                storage=storage,
                name=name,
                tell=_print_epoch,
                workers=workers,
            )
        )


def read_config(context: typer.Context) -> "TrialConfig":
    """Return the configuration of the command line."""
    from attention import Spec
    from attention.spec import parse_option
    from automl.trials.train import insert_attention

    options = context.params
    if options["space"] is None and options["like"] is None:
        config = _of_images(context)
    else:
        config = _of_any_task(context)
    if options["attention"] is None:
        return config
    name = "ssa-sym" if options["symmetric"] else options["attention"]
    spec = Spec(name, {key: parse_option(value) for key, value in map(split_option, options["option"] or [])})
    return insert_attention(config, spec, options["where"]).load()


def _of_images(context: typer.Context) -> "TrialConfig":
    """Return the configuration of an image classifier. `--set` overrides other options."""
    from automl.base import loading
    from automl.search.configuration import read_settings, set_values
    from automl.tasks.image_classification.data import SOURCES
    from search.config import TrialConfig
    from search.spaces import SPACES

    values = context.params
    data, width = values["data"], values["width"]
    dataset = values["dataset"] or ("folder" if data else "woof")
    if dataset in SPACES and dataset not in SOURCES:
        raise InputError(f"unknown data source {dataset!r} of images; use --space {dataset}")
    size, options, epochs = DEFAULTS.get(dataset, OTHERS)
    training = (*TRAINING, "mixup", "label_smoothing", "class_weights")
    config = TrialConfig.from_json(
        {
            "data": {
                "source": dataset,
                "path": data and str(Path(data).expanduser().resolve()),
                "size": size if values["size"] is None else values["size"],
                "subset": values["subset"],
            },
            "model": {
                "backbone": loading.make_absolute(values["backbone"] or "xresnet18"),
                "options": ({} if values["backbone"] else options) if width is None else {"width": width},
                **_chosen(values["weights"]),
            },
            "training": {
                **{name: values[name] for name in training},
                "epochs": epochs if values["epochs"] is None else values["epochs"],
            },
            "metric": values["metric"],
            "seed": values["seed"],
        }
    )
    return set_values(config, read_settings(values["assigned"] or []))


def _of_any_task(context: typer.Context) -> "TrialConfig":
    """Return the configuration of a space or a trial, changed by the command line."""
    from automl.base import loading
    from automl.config.user_code import announce
    from automl.search.configuration import (
        config_of_space,
        config_of_trial,
        is_dotted,
        read_settings,
        set_values,
    )
    from search.record import placement_name
    from search.spaces import load_space

    options = context.params
    values = read_settings(options["assigned"] or [])
    dotted = {key: value for key, value in values.items() if is_dotted(key)}
    parameters = {key: value for key, value in values.items() if not is_dotted(key)}
    explicit = {
        key: str(options[option])
        for option, key in KEYS.items()
        if (source := context.get_parameter_source(option)) and source.name in ("COMMANDLINE", "DEFAULT_MAP")
    }
    if options["like"] is not None:
        config = config_of_trial(options["like"], options["storage"])
        announce(f"--like {options['like']}", config.user_code())
        explicit |= parameters  # set_values rejects them with a message
    else:
        chosen = load_space(options["space"])
        if options["backbone"] is not None and chosen.with_backbone is not None:
            chosen = load_space(options["space"], loading.make_absolute(options["backbone"]), options["size"])
            explicit.pop("model.backbone")
        config, drawn = config_of_space(chosen, parameters)
        for key, value in drawn.items():
            print(f"drawn       {key}={value}; set it with --set", file=sys.stderr)
        if drawn:
            print(f"placement   {placement_name(config)}", file=sys.stderr)
    if "data.size" in explicit and not hasattr(config.data, "size") and hasattr(config.data, "context"):
        explicit["data.context"] = explicit.pop("data.size")
    for key in explicit.keys() & dotted.keys():
        raise InputError(f"--set {key} and another option both set {key}; give one of them")
    if options["weights"]:
        config = config.change(model=_chosen(options["weights"]))
    return set_values(config, {**explicit, **dotted})


def _print_result(result: "TrainResult") -> None:
    from automl.config.user_code import trust_option
    from automl.storage.trusted import is_remembered

    last = result.history[-1]
    scores = [f"{key} {last[key]:.4f}" for key in last if key not in COURSE and not key.startswith("gate.")]
    print(f"result     {', '.join(scores)}")
    print(f"checkpoint {result.checkpoint}")
    if result.run_id is None:
        print("warning    the run was not written to MLflow, so automl export --run cannot export it")
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


def _print_epoch(task: "Task", metrics: "Metrics") -> None:
    names = dict.fromkeys(("train_loss", "loss", task.metric.name))
    shown = [name for name in names if name in metrics]
    numbers = "  ".join(f"{name} {metrics[name]:.4f}" for name in shown)
    epoch = f"epoch {metrics['epoch']:.0f}/{task.config.training.epochs}"
    print(f"{epoch}  {numbers}  {metrics['seconds']:.1f} s", flush=True)
