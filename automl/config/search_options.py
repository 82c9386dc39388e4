"""Declare the settings of searches and studies: types, defaults, command-line options and their text.

The module imports nothing slow, for `automl --help`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from automl.base.options import STORAGE, WRITES, option, required

# The groups of the options in `automl search --help`.
SPACE, TRAINING, SEARCH = "Search space", "Training options", "Search options"
LIMITS, RESOURCES, FILES = "Limits", "Resources", "Storage"
Precision = Literal["auto", "bf16", "fp16", "fp32"]
Compile = Literal["auto", "off", "graphs", "inductor"]


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Options of a training that do not change its result beyond rounding.

    Attributes:
        precision: Precision: auto, bf16, fp16 or fp32.
        compile: Execution of steps: auto, off, graphs or inductor.
    """

    precision: str = option("auto", rare=True)
    compile: str = option("auto", rare=True)


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """Options that say what may be drawn.

    The first sentence of an attribute's text is the help of its option.

    Attributes:
        space: Space: see `automl spaces`, or `file.py:function`. Also `package.module:function`. From Python
            also a `Space`, or a function that takes an Optuna trial and returns a `TrialConfig`.
        train: Your own training loop: `file.py:function`. It takes the place of a space. Also
            `package.module:train`, or from Python a function of an `automl.Trial`.
        backbone: xresnet34, torchvision:NAME, timm:NAME or file.py:Net. Also `package.module:Net` or another
            registered name, and for a language model `hf:FOLDER` or `hf:NAME`. Default: the space's, and for
            photographs a pretrained one if its weights can be had.
        backbone_option: Option of --backbone, NAME=VALUE; may be repeated. In Python a list of them.
        attention: Types to choose from: ssa,timm:se,file.py:Class. Names of `automl attentions`,
            `timm:NAME`, `file.py:Class` or `package.module:Class`. Or a list of them. Default: the space's.
        weights: Initial weights: default (published) or a file. The path may also be a trial's folder or an
            export's folder. Or it is the ID of a run in MLflow. Every trial starts with these weights.
        weights_digest: Hash of the weights file. Computed by default.
        data: Folder or archive of images, series, code, text. It is read instead of downloading the space's
            dataset.
        study: Name of the study that the search belongs to. `run_study` sets it. It names the MLflow
            experiment, and the epochs are the study's whatever the amount of data.
        epochs: Epochs of a whole trial, in the baseline's time. Default: the space's.
        size: Side of the images in pixels, or tokens of a text. The tokens are those of a training window.
            Default: the space's.
        subset: Fraction of the data to use, stratified. Default: the space's.
        batch_size: Batch size, instead of the space's.
        mixup: Alpha of mixup, instead of the space's; 0 is off.
        flip: Mirror images at random. Default: True for photographs, False for digits.
        augment: Augmentation, instead of the space's: light, standard or strong.
        class_weights: Class weights of the loss, instead of the space's: none or balanced.
        seed: Seed of the sampler and of every trial.
        metric: accuracy, balanced_accuracy, macro_f1, auc or loss. It is the primary metric. Default: the
            task's. Several labels have macro_ap, and numbers r2 and mae.
        minimize: With --train, a lower metric is better, or a higher one. By default higher, but a name such
            as `val_loss` needs a direction.
        margin: With --train, the smallest difference that matters. It is in the unit of the metric. Default:
            that of a built-in metric of this name, otherwise 0.
        unit: With --train, the unit of the metric. For example `px`.
        chance: With --train, the score of guessing. No verdict is given unless a model is above it.
        context: Tokens at which the cost of decoding counts. They precede the decoded one. Default: those of
            a training window.
        full: Number of full layers of a hybrid decoder. These keep full attention. Default: the space's.
        vocabulary: Size of the tokenizer of texts or code; 0: bytes. With 0, the bytes of a text are tokens.
        distil: Weight of a decoder's original predictions in the loss. The loss contains the divergence from
            the predictions of a decoder with its initial weights and its own attention. From 0 to 1.
    """

    space: Any = option("", SPACE, shown="by --data", kind=str | None)
    train: Any = option(None, SPACE, shown=False, kind=str | None)
    backbone: str | None = option(None, SPACE, shown=False)
    backbone_option: Sequence[str] = option(
        (), SPACE, "--option", "--backbone-option", rare=True, kind=list[str] | None
    )
    attention: str | None = option(None, SPACE, shown=False)
    weights: str | None = option(None, SPACE, shown=False)
    weights_digest: str = ""
    data: str | None = option(None, SPACE, shown=False)
    study: str | None = None
    epochs: int | None = option(None, SEARCH, shown="the space's, or about 300 steps of --data")
    size: int | None = option(None, SPACE)
    subset: float | None = option(None, SPACE, rare=True)
    batch_size: int | None = option(None, TRAINING, shown=False, rare=True)
    mixup: float | None = option(None, TRAINING, shown=False, rare=True)
    flip: bool | None = option(None, TRAINING, "--flip/--no-flip", shown="photographs only", rare=True)
    augment: str | None = option(None, TRAINING, shown=False, rare=True)
    class_weights: str | None = option(None, TRAINING, shown=False, rare=True)
    seed: int = option(0, SEARCH)
    metric: str | None = option(None, SPACE, shown="the task's")
    minimize: bool | None = option(None, SPACE, "--minimize/--maximize", shown="by name", rare=True)
    margin: float | None = option(None, SPACE, shown=False, rare=True)
    unit: str | None = option(None, SPACE, shown=False, rare=True)
    chance: float | None = option(None, SPACE, shown=False, rare=True)
    context: int | None = option(None, LIMITS, shown=False, rare=True)
    full: int | None = option(None, SPACE, shown=False, rare=True)
    vocabulary: int | None = option(None, SPACE, shown=False, rare=True)
    distil: float | None = option(None, SPACE, shown=False, rare=True)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the trials: how many, chosen by what, and when they end.

    Attributes:
        trials: Number of configurations to try. Default: 16 if `budget` is not set either.
        budget: Time limit, such as 30m or 2h. Trials that run then continue to their next rung.
        warm_start: Name of an earlier search of the same space. Its five best trials are tried first.
        prior: Start of the sampler of placements: sensitivity or none. `sensitivity`: the loss of a trained
            decoder with each layer replaced, which is measured first. Default: `sensitivity` where it can be
            measured.
        seeds: Seeds of each cell with --sampler grid, or of each variant with --confirm. Those of a cell
            start at `seed`. In Python, only those of a cell.
        sampler: auto, tpe, placement, random, gp, nsga2, grid, module:Sampler. `auto` is `placement`
            if the space draws placements, otherwise `tpe`.
        baseline_share: Fraction of the trials that tune the baseline.
        pruning: Stop weak trials at rungs. Without it, every trial gets all of its epochs.
    """

    trials: int | None = option(None, SEARCH, shown="16", kind=str | None)
    budget: str | None = option(None, SEARCH)
    warm_start: str | None = option(None, SEARCH, rare=True)
    prior: str | None = option(None, SEARCH, shown="sensitivity of trained decoders", rare=True)
    seeds: int = option(1, SEARCH, shown="1; 10", rare=True, kind=int | None)
    sampler: str = option("auto", SEARCH, rare=True)
    baseline_share: float = option(0.2, SEARCH, rare=True)
    pruning: bool = option(True, SEARCH, "--pruning/--no-pruning", rare=True)


@dataclass(frozen=True, kw_only=True)
class TermsOptions(RuntimeOptions):
    """Options of how one training runs.

    Attributes:
        test: With --sampler grid, also score the test split. It is scored after the last epoch.
        equal: Budget held equal across trials: time or epochs. `time`: a trial with slower epochs than the
            baseline gets fewer of them. `epochs`: all get the same number.
        validations_per_epoch: Validations in an epoch; rungs lie there. Default: 1, and up to 9 in trainings
            of at most four epochs of thousands of steps.
        max_params: Maximum number of parameters, such as 5M.
        max_macs: Maximum MACs for one input, such as 2G.
        max_memory: Maximum memory of a training step, such as 4GB.
        max_latency_ms: Maximum latency of one input or decoded token, in ms.
        max_cache: Maximum memory of a decoder's keys, values and states, such as 16MB. These are kept while
            decoding.
    """

    test: bool = option(False, SEARCH, "--test", rare=True)
    equal: str = option("time", TRAINING, rare=True)
    validations_per_epoch: int | None = option(None, TRAINING, shown="1, more in long epochs", rare=True)
    max_params: str | None = option(None, LIMITS, rare=True)
    max_macs: str | None = option(None, LIMITS, rare=True)
    max_memory: str | None = option(None, LIMITS, rare=True)
    max_latency_ms: float | None = option(None, LIMITS, rare=True)
    max_cache: str | None = option(None, LIMITS, rare=True)


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Options of where the trials run, and what is kept.

    Attributes:
        name: Name of the search. It is unique in `storage`. Default: the space and the time.
        keep: Number of best trials whose checkpoints are kept.
        cpus_per_trial: CPU cores of each worker.
        gpus_per_trial: GPUs of each worker: auto (measured), or a number such as 0.5. A fraction shares one.
            `auto` is 0 without any, 1/2, 1/4 or 1/8 if the baseline leaves as much of a GPU idle, otherwise
            1.
        workers_per_trial: Data-parallel processes of a trial. Each trains on a part of every batch.
        resource: Custom Ray resource of each worker, NAME=AMOUNT; may be repeated. In Python,
            a list of them.
        label: Label of the nodes to train on, KEY=VALUE; may be repeated. In Python a list of them.
        concurrent: Maximum number of trials at once. It is requested from a cluster even beyond the
            current capacity, which triggers autoscaling. Default: as many as fit.
        storage: Folder of all searches, or its address. The address is one of an object store. The search
            gets the folder `name` in it.
        callbacks: Callback: file.py:Name; may be repeated. Or `package.module:Name`. In Python
            a list of such names, or of objects of `Callback`.
    """

    name: str | None = option(None, FILES, shown="space and time")
    keep: int = option(3, FILES, rare=True)
    cpus_per_trial: float = option(1, RESOURCES)
    gpus_per_trial: float | None = option(None, RESOURCES, shown="auto", rare=True, kind=str | None)
    workers_per_trial: int = option(1, RESOURCES)
    resource: Sequence[str] = option((), RESOURCES, rare=True, kind=list[str] | None)
    label: Sequence[str] = option((), RESOURCES, rare=True, kind=list[str] | None)
    concurrent: int | None = option(None, RESOURCES, shown="as many as fit")
    storage: str = option(STORAGE, effect=WRITES)
    callbacks: Sequence[Any] = option((), None, "--callback", rare=True, kind=list[str] | None)


NOUNS = (QuestionOptions, PlanOptions, TermsOptions, PlaceOptions)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(PlaceOptions, TermsOptions, PlanOptions, QuestionOptions):
    """The options of a search, which are the fields of `Settings`."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions(SearchOptions):
    """Arguments of `run_study`, which are settings of its searches, and options of `automl study`.

    Attributes:
        name: Name of the study; see automl studies.
        small: Run a small version in minutes, on bundled data or --data.
        attention: Your own module as a row of reality-check: file.py:Class. Several are separated by commas.
        seeds: Number of trainings of each cell, all with the same seeds.
        data: Folder or archive of the data.
        storage: Folder of all searches, or its address. Its searches have the name of the study.
        epochs: Epochs of each training.
        seed: First seed.
        max_memory: Maximum memory of a training step, such as 11GB.
    """

    name: str = field(kw_only=False, metadata=required(argument=True))
    small: bool = option(False, None, "--small")
    attention: str | None = option(None, shown=False)
    seeds: int = option(1, shown="the study's, or 1", kind=int | None)
    data: str | None = option(None, shown="the study's")
    storage: str = option(STORAGE, None, "--out", effect=WRITES)
    epochs: int | None = option(None, shown="as published")
    subset: float | None = option(None, shown="the study's")
    seed: int = option(0)
    max_memory: str | None = option(None, shown=False)
    concurrent: int | None = option(None, shown="as many as fit")
    cpus_per_trial: float = option(1)
    gpus_per_trial: float | None = option(None, shown="auto", kind=str | None)
    workers_per_trial: int = option(1)
