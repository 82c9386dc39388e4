"""`automl train`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attention import InputError
from automl.cli.options import CompileOption, PrecisionOption, describe, only
from automl.config.escape import shell

FITS = "what fits"
# The groups of the options in `automl train --help`.
WHAT, MODEL, HOW, KEPT = "What is trained", "Model", "Training", "What is kept"
# Of each dataset: side of the images, options of xresnet18, epochs; as its search space has them.
DEFAULTS: dict[str, tuple[int, dict[str, float], int]] = {"digits": (32, {"width": 0.25}, 6)}
OTHERS: tuple[int, dict[str, float], int] = (128, {}, 5)
TRAINING = ("batch_size", "learning_rate", "weight_decay", "optimizer", "schedule")
# Options that set a key of any task's configuration, where they are given.
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
# Of an epoch's metrics, those that are no scores.
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
    }
)

if TYPE_CHECKING:
    from automl.tasks import Task
    from automl.trials.train import TrainResult
    from search.config import TrialConfig
    from search.record import Metrics


def train(
    context: typer.Context,
    space: Annotated[str | None, describe("The baseline of a search space, of any task.", WHAT)] = None,
    like: Annotated[str | None, describe("A search's best, or its SEARCH:TRIAL.", WHAT)] = None,
    assigned: Annotated[
        list[str] | None, describe("KEY=VALUE of it: heads=8, training.clip=1.", WHAT, "--set")
    ] = None,
    dataset: Annotated[
        str | None, describe("digits, nette, woof, woof1 or folder.", WHAT, shown="woof")
    ] = None,
    data: Annotated[str | None, describe("Folder or archive.", WHAT)] = None,
    size: Annotated[int | None, describe("Of images, in pixels.", WHAT, shown=FITS)] = None,
    subset: Annotated[float, describe("Stratified fraction of the inputs.", WHAT, rare=True)] = 1.0,
    backbone: Annotated[str | None, describe("Such as timm:NAME.", MODEL, shown="xresnet18")] = None,
    width: Annotated[
        float | None,
        describe("Multiplies the channels of an xresnet's stages.", MODEL, shown=FITS, rare=True),
    ] = None,
    weights: Annotated[str, describe("default, or a file.", MODEL, shown="new")] = "",
    attention: Annotated[str | None, describe("Its type, such as ssa or decomposed.", MODEL)] = None,
    symmetric: Annotated[bool, describe("ssa-sym instead of ssa.", MODEL, "--symmetric")] = False,
    where: Annotated[str | None, describe("Its site.", MODEL, shown="end of stage 1")] = None,
    option: Annotated[list[str] | None, describe("Of the attention, as NAME=VALUE.", MODEL)] = None,
    epochs: Annotated[int | None, describe(None, HOW, shown=FITS)] = None,
    batch_size: Annotated[int, describe(None, HOW)] = 64,
    learning_rate: Annotated[float, describe(None, HOW, "--learning-rate", "--lr")] = 3e-3,
    weight_decay: Annotated[float, describe(None, HOW, rare=True)] = 1e-2,
    optimizer: Annotated[str, describe("Such as adamw or sgd.", HOW)] = "adamw",
    schedule: Annotated[str, describe("Such as one-cycle or flat-cosine.", HOW, rare=True)] = "one-cycle",
    mixup: Annotated[float, describe("Its alpha; 0 is off.", HOW)] = 0.0,
    label_smoothing: Annotated[float, describe(None, HOW, rare=True)] = 0.1,
    class_weights: Annotated[str, describe("Of the loss: none or balanced.", HOW, rare=True)] = "none",
    metric: Annotated[
        str,
        describe(
            "Shown: accuracy, balanced_accuracy, macro_f1, auc or loss.", HOW, shown="accuracy", rare=True
        ),
    ] = "",
    seed: Annotated[int, describe(None, HOW)] = 0,
    workers: Annotated[int, describe("That share each batch.", HOW)] = 1,
    gpu: Annotated[int | None, describe("The GPU of this number.", HOW)] = None,
    device: Annotated[str, describe("As PyTorch names it, or auto.", HOW, rare=True)] = "auto",
    precision: PrecisionOption = "auto",
    compile: CompileOption = "auto",
    lr_find: Annotated[bool, describe("Suggest a learning rate; don't train.", None, "--lr-find")] = False,
    dump: Annotated[bool, describe("Print the model; don't train.", None, "--dump")] = False,
    log: Annotated[str | None, describe("CSV file that gets one line an epoch.", KEPT)] = None,
    name: Annotated[str | None, describe("Of its folder and its run.", KEPT, shown="the time")] = None,
    resume: Annotated[str | None, describe("Continue the training of this name.", KEPT)] = None,
    storage: Annotated[str, describe("Folder of its folder.", KEPT)] = "searches",
) -> None:
    """Train one configuration, of any task, without a search."""
    from automl.config.device import find_device, gpu_with_number
    from automl.config.runtime import Runtime
    from automl.tasks import open_task
    from automl.training.lr_find import find_learning_rate, plot
    from automl.trials.train import resume_train, run_train

    if gpu is not None:
        if device != "auto":
            raise InputError(f"--gpu {gpu} and --device {device} both name a device; give one of them")
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
        raise InputError("--symmetric goes with --attention ssa alone")
    if attention is None and (where or option):
        raise InputError("--where and --option need an --attention")
    if (space is not None) + (like is not None) + (dataset is not None) > 1:
        raise InputError("--space, --like and --dataset each name what is trained; give one of them")
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
    """Return the configuration that the options of a command line describe."""
    from attention import Spec
    from automl.trials.train import place

    given = context.params
    if given["space"] is None and given["like"] is None:
        config = _of_images(context)
    else:
        config = _of_any_task(context)
    if given["attention"] is None:
        return config
    name = "ssa-sym" if given["symmetric"] else given["attention"]
    return place(config, Spec(name, dict(_option(text) for text in given["option"] or [])), given["where"])


def _of_images(context: typer.Context) -> "TrialConfig":
    """Return the configuration of a classifier of images, with all options and then what --set names."""
    from automl.data.images import SOURCES
    from automl.search.configuration import read_settings, set_values
    from backbones import loading
    from search.config import TrialConfig
    from search.spaces import SPACES

    given = context.params
    data, width = given["data"], given["width"]
    dataset = given["dataset"] or ("folder" if data else "woof")
    if dataset in SPACES and dataset not in SOURCES:
        raise InputError(f"unknown data source {dataset!r} of images; train it with --space {dataset}")
    size, options, epochs = DEFAULTS.get(dataset, OTHERS)
    training = (*TRAINING, "mixup", "label_smoothing", "class_weights")
    config = TrialConfig.from_json(
        {
            "data": {
                "source": dataset,
                "path": data and str(Path(data).expanduser().resolve()),
                "size": size if given["size"] is None else given["size"],
                "subset": given["subset"],
            },
            "model": {
                "backbone": loading.absolute(given["backbone"] or "xresnet18"),
                "options": ({} if given["backbone"] else options) if width is None else {"width": width},
                **_chosen(given["weights"]),
            },
            "training": {
                **{name: given[name] for name in training},
                "epochs": epochs if given["epochs"] is None else given["epochs"],
            },
            "metric": given["metric"],
            "seed": given["seed"],
        }
    )
    return set_values(config, read_settings(given["assigned"] or []))


def _of_any_task(context: typer.Context) -> "TrialConfig":
    """Return the configuration of a space or of a search, with what the command line names."""
    from automl.config.user_code import announce
    from automl.search.configuration import is_dotted, like, of_space, read_settings, set_values
    from backbones import loading
    from search.record import placement_name
    from search.spaces import load_space

    given = context.params
    values = read_settings(given["assigned"] or [])
    dotted = {key: value for key, value in values.items() if is_dotted(key)}
    parameters = {key: value for key, value in values.items() if not is_dotted(key)}
    explicit = {
        key: str(given[option])
        for option, key in KEYS.items()
        if (source := context.get_parameter_source(option)) and source.name in ("COMMANDLINE", "DEFAULT_MAP")
    }
    if given["like"] is not None:
        config = like(given["like"], given["storage"])
        announce(f"--like {given['like']}", config.user_code())
        explicit |= parameters  # which set_values refuses
    else:
        chosen = load_space(given["space"])
        if given["backbone"] is not None and chosen.with_backbone is not None:
            chosen = load_space(given["space"], loading.absolute(given["backbone"]), given["size"])
            explicit.pop("model.backbone")
        config, drawn = of_space(chosen, parameters)
        for key, value in drawn.items():
            print(f"drawn       {key}={value}; --set chooses it", file=sys.stderr)
        if drawn:
            print(f"placement   {placement_name(config)}", file=sys.stderr)
    for key in explicit.keys() & dotted.keys():
        raise InputError(f"--set {key} and an option of the command both set it; give one of them")
    if given["weights"]:
        config = config.change(model=_chosen(given["weights"]))
    return set_values(config, {**explicit, **dotted})


def _print_result(result: "TrainResult") -> None:
    from automl.config.user_code import trust_option
    from automl.storage.trusted import is_remembered

    last = result.history[-1]
    scores = [f"{key} {last[key]:.4f}" for key in last if key not in COURSE and not key.startswith("gate.")]
    print(f"result     {', '.join(scores)}")
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
