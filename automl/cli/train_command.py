"""`automl train`."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from automl.base import loading
from automl.base.errors import InputError
from automl.base.escape import shell
from automl.base.options import split_option
from automl.base.text import absolute_data
from automl.cli.command import only, with_options_of
from automl.config.search_options import RuntimeOptions
from automl.trials.train_options import KEYS, RunOptions, TrainArguments, TrainOptions

# Side of the images, options of xresnet18 and epochs of each dataset, as in its search space.
DEFAULTS: dict[str, tuple[int, dict[str, float], int]] = {"digits": (32, {"width": 0.25}, 6)}
OTHERS: tuple[int, dict[str, float], int] = (128, {}, 5)

if TYPE_CHECKING:
    from automl.task import Task
    from automl.trials.train import TrainResult
    from search.config import TrialConfig
    from search.record import Metrics


@with_options_of(TrainOptions, RuntimeOptions, RunOptions, TrainArguments)
def train(context: typer.Context, **values: Any) -> None:
    """Train one configuration without a search."""
    from automl.config.device import find_device
    from automl.config.runtime import Runtime
    from automl.task import open_task
    from automl.training.lr_find import find_learning_rate, plot
    from automl.trials.train import run_train

    options = _options(context)
    runtime = Runtime(
        device=find_device(options.device),
        precision=options.precision,  # type: ignore[arg-type]
        compile=options.compile,  # type: ignore[arg-type]
    )
    of_run = ("log", "storage", "workers", "trust")
    run = {"runtime": runtime, "tell": _print_epoch, **{key: values[key] for key in of_run}}
    if options.resume is not None:
        only(context, "resume", *of_run, "device", "precision", "compile")
        _print_result(run_train(resume=options.resume, **run))
        return
    if options.attention is None and (options.where or options.attention_options):
        raise InputError("--where and --option need --attention; add --attention TYPE")
    if (options.space is not None) + (options.like is not None) + (options.dataset is not None) > 1:
        raise InputError("--space, --like and --dataset exclude each other; give one of them")
    config = read_config(context)
    if options.dump:
        print(open_task(config, runtime).model())
    elif options.lr_find:
        test = find_learning_rate(open_task(config, runtime))
        plot(test, Path("lr_find.png"))
        print(f"suggested learning rate {test.suggestion:g}; the plot is lr_find.png")
    else:
        _print_result(run_train(config, name=values["name"], **run))


def _options(context: typer.Context) -> TrainOptions:
    return TrainOptions(**{declared.name: context.params[declared.name] for declared in fields(TrainOptions)})


def read_config(context: typer.Context) -> "TrialConfig":
    """Return the configuration of the command line."""
    from attention import Spec
    from attention.spec import parse_option
    from automl.trials.train import insert_attention

    options = _options(context)
    if options.space is None and options.like is None:
        config = _of_images(options)
    else:
        config = _of_any_task(options, context)
    if options.attention is None:
        return config
    texts = map(split_option, options.attention_options or [])
    spec = Spec(options.attention, {key: parse_option(value) for key, value in texts})
    return insert_attention(config, spec, options.where).load()


def _of_images(options: TrainOptions) -> "TrialConfig":
    """Return the configuration of an image classifier. `--set` overrides other options."""
    from automl.search.configuration import read_settings, set_values
    from automl.tasks.image_classification.data import SOURCES
    from search.config import TrialConfig
    from search.space import SPACES

    dataset = options.dataset or ("folder" if options.data else "woof")
    if dataset in SPACES and dataset not in SOURCES:
        raise InputError(f"unknown data source {dataset!r} of images; use --space {dataset}")
    size, model_options, epochs = DEFAULTS.get(dataset, OTHERS)
    training = {name: getattr(options, name) for name, key in KEYS.items() if key.startswith("training.")}
    config = TrialConfig.from_json(
        {
            "data": {
                "source": dataset,
                "path": options.data and absolute_data(options.data),
                "size": size if options.size is None else options.size,
                "subset": options.subset,
            },
            "model": {
                "backbone": loading.make_absolute(options.backbone or "xresnet18"),
                "options": {} if options.backbone else model_options,
                **_chosen(options.weights),
            },
            "training": training | {"epochs": epochs if options.epochs is None else options.epochs},
            "metric": options.metric,
            "seed": options.seed,
        }
    )
    return set_values(config, read_settings(options.assigned or []))


def _of_any_task(options: TrainOptions, context: typer.Context) -> "TrialConfig":
    """Return the configuration of a space or a trial, changed by the command line."""
    from automl.search.configuration import (
        config_of_space,
        config_of_trial,
        is_dotted,
        read_settings,
        set_values,
    )
    from automl.storage.user_code import check_trusted
    from search.space import load_space

    values = read_settings(options.assigned or [])
    dotted = {key: value for key, value in values.items() if is_dotted(key)}
    parameters = {key: value for key, value in values.items() if not is_dotted(key)}
    explicit = {
        key: str(getattr(options, name))
        for name, key in KEYS.items()
        if (source := context.get_parameter_source(name)) and source.name in ("COMMANDLINE", "DEFAULT_MAP")
    }
    if options.like is not None:
        config = config_of_trial(options.like, context.params["storage"])
        check_trusted(f"--like {options.like}", config.user_code(), trust=context.params["trust"])
        explicit |= parameters  # set_values rejects them with a message
    else:
        assert options.space is not None
        chosen = load_space(options.space)
        if options.backbone is not None and chosen.with_backbone is not None:
            chosen = load_space(options.space, loading.make_absolute(options.backbone), options.size)
            explicit.pop("model.backbone")
        config, drawn = config_of_space(chosen, parameters)
        for key, value in drawn.items():
            print(f"drawn       {key}={value}; set it with --set", file=sys.stderr)
        if drawn:
            print(f"placement   {config.model.placement_name()}", file=sys.stderr)
    if "data.size" in explicit and not hasattr(config.data, "size") and hasattr(config.data, "context"):
        explicit["data.context"] = explicit.pop("data.size")
    for key in explicit.keys() & dotted.keys():
        raise InputError(f"--set {key} and another option both set {key}; give one of them")
    if options.weights:
        config = config.change(model=_chosen(options.weights))
    return set_values(config, {**explicit, **dotted})


def _print_result(result: "TrainResult") -> None:
    from automl.storage.user_code import trust_option
    from automl.tracking.run_spec import EPOCH
    from search.metric import show_metrics

    last, others = result.history[-1], {*EPOCH, "steps", "time", "train_loss", "train_accuracy"}
    scores = {key: last[key] for key in last if key not in others and not key.startswith("gate.")}
    print(f"result     {show_metrics(scores, result.metrics)}")
    print(f"checkpoint {result.checkpoint}")
    if result.run_id is None:
        print("warning    the run was not written to MLflow; automl export NAME exports it")
    else:
        export = f"automl export{trust_option(result.user_code)} --run".split()
        out = f"exports/{result.checkpoint.parent.name}"
        print(f"next       {shell([*export, result.run_id, '--out', out])}")


def _chosen(weights: str) -> dict[str, str]:
    from automl.task.initial import choose_weights
    from search.config import PUBLISHED

    if weights in ("", PUBLISHED):
        return {"weights": weights}
    file, digest = choose_weights(weights)
    return {"weights": file, "weights_digest": digest}


def _print_epoch(task: "Task", metrics: "Metrics") -> None:
    from search.metric import show_metrics

    shown = [n for n in dict.fromkeys(("train_loss", "loss", task.metric.name)) if n in metrics]
    numbers = show_metrics({name: metrics[name] for name in shown}, [task.metric]).replace(", ", "  ")
    epoch = f"epoch {metrics['epoch']:.3g}/{task.config.training.epochs}"
    print(f"{epoch}  {numbers}  {metrics['seconds']:.1f} s", flush=True)
