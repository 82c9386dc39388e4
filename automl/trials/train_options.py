"""Declare the options of `train`, in a module that imports nothing slow."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from automl.base.options import OPTION, WRITES, option
from automl.config.search_options import RuntimeOptions

if TYPE_CHECKING:
    from automl.config.runtime import Runtime
    from automl.task import Task
    from search.config import TrialConfig
    from search.record import Metrics

FITS = "by data"
# The groups of the options in `automl train --help`.
CONFIGURATION, MODEL, TRAINING, FILES = "Configuration and data", "Model", "Training options", "Storage"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RuntimeOptions):
    """Options of `automl train` that make a configuration and choose a device.

    Attributes:
        space: Train the baseline of this search space.
        like: Train a search's best, or SEARCH:TRIAL.
        assigned: Set KEY=VALUE: heads=8, training.clip=1.
        dataset: Dataset: digits, nette, woof, woof1 or folder.
        data: Folder or archive of data.
        size: Image side or tokens.
        subset: Fraction of the data to use, stratified.
        backbone: Backbone, such as timm:NAME.
        weights: Initial weights: default or a file.
        attention: Attention: a name of automl attentions, timm:NAME or file.py:Class.
        where: Attention site.
        attention_options: Option of the attention, NAME=VALUE.
        epochs: Number of epochs.
        batch_size: Batch size.
        learning_rate: Peak learning rate.
        mixup: Mixup alpha; 0 is off.
        class_weights: Class weights of the loss: none or balanced.
        metric: Metric to print: accuracy, balanced_accuracy, macro_f1, auc or loss.
        seed: Seed of the training.
        device: Device as PyTorch names it, or auto.
        lr_find: Suggest a learning rate without training.
        dump: Print the model without training.
        resume: Resume the training of this name.
    """

    space: str | None = option(None, CONFIGURATION)
    like: str | None = option(None, CONFIGURATION)
    assigned: list[str] | None = option(None, CONFIGURATION, "--set")
    dataset: str | None = option(None, CONFIGURATION, shown="woof")
    data: str | None = option(None, CONFIGURATION, key="data.path")
    size: int | None = option(None, CONFIGURATION, shown=FITS, key="data.size")
    subset: float = option(1.0, CONFIGURATION, rare=True, key="data.subset")
    backbone: str | None = option(None, MODEL, shown="xresnet18", key="model.backbone")
    weights: str = option("", MODEL, shown="random")
    attention: str | None = option(None, MODEL)
    where: str | None = option(None, MODEL, shown="end of stage 1")
    attention_options: list[str] | None = option(None, MODEL, "--option")
    epochs: int | None = option(None, TRAINING, shown=FITS, key="training.epochs")
    batch_size: int = option(64, TRAINING, key="training.batch_size")
    learning_rate: float = option(0.003, TRAINING, "--learning-rate", "--lr", key="training.learning_rate")
    mixup: float = option(0.0, TRAINING, key="training.mixup")
    class_weights: str = option("none", TRAINING, rare=True, key="training.class_weights")
    metric: str = option("", TRAINING, shown="accuracy", rare=True, key="metric")
    seed: int = option(0, TRAINING, key="seed")
    device: str = option("auto", TRAINING)
    lr_find: bool = option(False, None, "--lr-find")
    dump: bool = option(False, None, "--dump")
    resume: str | None = option(None, FILES)


# Keys of a configuration, of any task, by the options that set them.
KEYS = {name: key for name, key in ((f.name, f.metadata[OPTION].key) for f in fields(TrainOptions)) if key}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Arguments of `run_train`, for a new training and an earlier one.

    Attributes:
        runtime: Device, precision and compilation. The best of this machine by default.
        log: CSV file with one line per epoch.
        storage: Folder of all trainings. A training's folder has its checkpoint.
        trust: Allow running user-defined code that only the files name.
        tell: Function that is called with the task and its metrics after each epoch.
        workers: Data-parallel processes. They are Ray processes that share each batch. Each has its own
            device: a GPU, unless there is none or `runtime` is on the CPU.
    """

    runtime: "Runtime | None" = None
    log: str | Path | None = option(None, FILES, kind=str | None, effect=WRITES)
    storage: str | Path = option("searches", FILES, kind=str, effect=WRITES)
    trust: bool = option(False, FILES, "--trust", rare=True)
    tell: "Callable[[Task, Metrics], None] | None" = None
    workers: int = option(1, TRAINING)


@dataclass(frozen=True)
class TrainArguments(RunOptions):
    """Arguments of `run_train`.

    Attributes:
        config: Configuration.
        resume: Name of a training to continue from its checkpoint, in place of `config` and `name`.
        name: Name of the training. It is that of its folder and of its run in MLflow, and contains the time
            by default.
    """

    config: "TrialConfig | None" = None
    _: KW_ONLY
    resume: str | None = None
    name: str | None = option(None, FILES, shown="the time")
