"""User settings of a search, stored in its `search.json`."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args

from attention import InputError, check_utf8, unknown
from automl.config.escape import shell
from automl.config.limits import Limits
from automl.config.units import parse_amounts, parse_count, parse_labels, parse_seconds, parse_size
from backbones import loading
from cluster.resources import TrialResources
from search.callback import Callback
from search.choices import AUGMENT
from search.config import ClassWeights, TrialConfig
from search.given import check_given
from search.grid import GRID
from search.serialise import fields_to_json
from search.space import Space, SpaceFunction, random_draws, space_name
from search.spaces import SPACES, load

if TYPE_CHECKING:
    from automl.config.runtime import Runtime

COSTS = ("latency", "params", "macs")  # objectives beside the task's metric
EQUAL = ("time", "epochs")
INIT = ("scratch", "shared")
INSERT_AT = 3 / 4  # of the epochs, in the flat part of the schedule
TRIALS = 16  # where neither trials nor a time are given
STORAGE = "searches"
TITLE = 40  # characters of what searches and experiments are called after
NAME_BYTES = 200  # of a name: file systems take 255, and an export in the making has a longer name
# What a message calls the types of settings.
KINDS: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
SCHEDULING_OPTIONS = (
    "resource",
    "label",
    "concurrent",
    "callbacks",
)  # where and when trials run, which does not change what is searched


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a search. `run_search` takes them as keyword arguments.

    `search.json` holds them, with the name of a space that is a function and of callbacks that are given by
    name.

    Attributes:
        space: A name of `automl spaces`, `file.py:function` or `package.module:function`. Or a function of an
            Optuna trial that returns a `TrialConfig`, or a `Space`.
        backbone: The backbone to search instead of the space's own: `torchvision:NAME`, `timm:NAME`,
            `file.py:Net`, `package.module:Net` or a name of the table.
        weights: The weights that every trial starts from: `default` for those that the library of the
            backbone publishes, or the address of a file, or of the folder of a trial or an export.
        weights_digest: The hash of that file. Found by default.
        data: A folder or archive to read instead of downloading the dataset of the space.
        trials: The number of configurations. 16 if there is no `budget` either.
        budget: The time limit, such as `2h`. After it, running trials finish their rung.
        epochs: The epochs of a whole trial, instead of the space's.
        size: The side of the images in pixels, instead of the space's.
        subset: The share of the data to use.
        name: The name of the search, unique in `storage`. Made from the space and the time by default.
        batch_size: The batch size, instead of the space's.
        mixup: The alpha of mixup, instead of the space's. 0 switches it off.
        flip: Whether images are mirrored. By default photographs are and digits are not.
        augment: The strength of augmentation: `light`, `standard` or `strong`.
        class_weights: The weights of classes in the loss: `none` or `balanced`.
        seed: The seed of the sampler and of every trial.
        seeds: With the sampler `grid`, the trainings of each cell: with `seed` and the numbers after it.
        test: With the sampler `grid`, score the test split after the last epoch, too.
        equal: The budget held equal across trials. `time`: a trial whose epochs take longer than the
            baseline's gets fewer of them. `epochs`: all get the same number.
        init: What each trial starts from. `scratch`: new weights, or `weights`. `shared`: a plain training
            that trials share and finish with their placement in it. Hyperparameters are then the baseline's.
        shared_trainings: The number of shared partial trainings at first. A placement that was in all of
        them gets another one. sampler: `tpe`, `placement`, `random`, `gp`, `nsga2`, `cmaes`, `grid` or
            `package.module:Sampler`. `auto` is `placement` if a space draws placements and there is one
            objective, and `tpe` otherwise.
        metric: The primary metric, instead of the task's default, such as `macro_f1`.
        objective: What is searched for: one to three of the metric, `latency`, `params` and `macs`, with
            commas between. By default the metric alone.
        baseline_share: The share of trials that tunes the plain backbone.
        warm_start: The name of an earlier search of the same space, whose trials initialise the sampler.
        max_params: The maximum number of parameters, such as `5M`.
        max_macs: The maximum MACs for one input, such as `2G`.
        max_memory: The maximum memory of a training step, such as `4GB`.
        max_latency_ms: The maximum latency of one input, in ms.
        keep: The number of best trials whose checkpoints are kept. With several objectives, the Pareto front.
        cpus_per_trial: The CPU cores of each worker.
        gpus_per_trial: The GPUs of each worker. By default one if there are any.
        workers_per_trial: The processes that train one trial together, each on a part of every batch.
        resource: Custom resources of a cluster for each worker, as `NAME=AMOUNT`.
        label: Labels of the nodes that may run trials, as `KEY=VALUE`.
        concurrent: The maximum number of trials at once. It is requested from Ray even beyond the current
            capacity, which triggers autoscaling. By default as many as the capacity allows.
        precision: `auto`, `bf16`, `fp16` or `fp32`.
        compile: How steps run: `auto`, `off`, `graphs` or `inductor`.
        storage: A folder, or its address in an object store. It gets a folder called `name`.
        callbacks: Objects of `Callback`, or names of such classes: `file.py:Name`, `package.module:Name` or
            `tensorboard`.

    Raises:
        InputError: A value cannot work.

    Example:
        >>> import automl
        >>> automl.Settings(space="digits", max_params="5M").limits.params
        5000000.0
    """

    space: str | SpaceFunction | Space = ""
    backbone: str | None = None
    weights: str | None = None
    weights_digest: str = ""
    data: str | None = None
    trials: int | None = None
    budget: str | None = None
    epochs: int | None = None
    size: int | None = None
    subset: float = 1.0
    name: str | None = None
    batch_size: int | None = None
    mixup: float | None = None
    flip: bool | None = None
    augment: str | None = None
    class_weights: str | None = None
    seed: int = 0
    seeds: int = 1
    test: bool = False
    equal: str = "time"
    init: str = "scratch"
    shared_trainings: int = 3
    sampler: str = "auto"
    metric: str | None = None
    objective: str | None = None
    baseline_share: float = 0.2
    warm_start: str | None = None
    max_params: str | None = None
    max_macs: str | None = None
    max_memory: str | None = None
    max_latency_ms: float | None = None
    keep: int = 3
    cpus_per_trial: float = 1
    gpus_per_trial: float | None = None
    workers_per_trial: int = 1
    resource: Sequence[str] = ()
    label: Sequence[str] = ()
    concurrent: int | None = None
    precision: str = "auto"
    compile: str = "auto"
    storage: str = STORAGE
    callbacks: Sequence[str | Callback] = ()

    def __new__(cls, *more: object, **given: object) -> "Settings":
        """Refuse what is not a setting, as the command line refuses unknown options."""
        if more:
            raise InputError(
                f"settings have names, as in run_search(space='digits'); got {more[0]!r} without one"
            )
        for key in given:
            if key not in cls.__dataclass_fields__:
                raise unknown("setting", key, cls.__dataclass_fields__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for key in ("resource", "label", "callbacks"):  # JSON and the command line have lists
            given = getattr(self, key) or ()
            object.__setattr__(self, key, tuple(given) if isinstance(given, list | tuple) else (given,))
        for key in ("data", "weights", "storage", "max_params", "max_macs", "max_memory"):
            given = getattr(self, key)  # what Python has better types for than text
            if isinstance(given, PathLike):
                object.__setattr__(self, key, fspath(given))
            elif key.startswith("max_") and type(given) in (int, float):
                object.__setattr__(self, key, f"{given:.15g}")
        self._check_types()
        if self.trials is not None and self.trials < 1:
            raise InputError(f"--trials must be 1 or more; got {self.trials}")
        if self.equal not in EQUAL:
            raise unknown("kind of equality", self.equal, EQUAL)
        if self.init not in INIT:
            raise unknown("kind of start", self.init, INIT)
        if self.shared_trainings < 1:
            raise InputError(f"--shared-trainings must be 1 or more; got {self.shared_trainings}")
        if self.shares_training and "," in (self.objective or ""):
            raise InputError(
                f"--init shared compares trials by one objective; got --objective {self.objective}"
            )
        self._check_grid()
        if self.augment is not None and self.augment not in AUGMENT:
            raise unknown("augmentation", self.augment, AUGMENT)
        if self.class_weights is not None and self.class_weights not in get_args(ClassWeights):
            raise unknown("class weights", self.class_weights, get_args(ClassWeights))
        if not 0 <= self.baseline_share <= 1:
            raise InputError(f"--baseline-share must lie between 0 and 1; got {self.baseline_share:g}")
        if self.keep < 1:
            raise InputError(f"--keep must be 1 or more; got {self.keep}")
        if self.concurrent is not None and self.concurrent < 1:
            raise InputError(f"--concurrent must be 1 or more; got {self.concurrent}")
        if self.max_latency_ms is not None and not 0 < self.max_latency_ms < inf:
            raise InputError(f"--max-latency-ms must be above 0; got {self.max_latency_ms:g}")
        if self.name is not None:
            check_name(self.name)
        # These raise what is wrong with their part.
        _ = (
            self.limits,
            self.shape,
            self.seconds,
            self.runtime,
            TrialConfig(seed=self.seed),
        )

    def _check_grid(self) -> None:
        if self.seeds < 1:
            raise InputError(f"--seeds must be 1 or more; got {self.seeds}")
        if self.sampler != GRID:
            if self.test:
                raise InputError(
                    "--test scores the test split of a grid, which chooses nothing; add --sampler grid. A "
                    "search is tested by automl confirm"
                )
            if self.seeds > 1:
                raise InputError(
                    f"--seeds {self.seeds} repeats the cells of a grid; add --sampler grid, or --confirm to "
                    f"train finalists with so many seeds"
                )
            return
        if self.shares_training:
            raise InputError("--sampler grid trains each cell from its own start; leave --init shared out")
        if self.warm_start is not None:
            raise InputError("--sampler grid trains all cells and learns nothing; leave --warm-start out")

    def _check_types(self) -> None:
        """Raise InputError for the first value of a type that the command line cannot give."""
        if not (callable(self.space) or isinstance(self.space, str)) or not self.space:
            raise InputError(
                f"--space must be a name of `automl spaces`, file.py:function or module:function, and from "
                f"Python may be a function; got {self.space!r}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
            said = [KINDS[kind] for kind in kinds if kind in KINDS]
            fits = type(value) in kinds or (type(value) is int and float in kinds)
            if isinstance(value, str):
                check_utf8(option(field.name), value)
            if field.name != "space" and said and not fits:
                raise InputError(f"{option(field.name)} must be {said[0]}; got {value!r}")
            listed = isinstance(value, tuple) and field.name != "callbacks"
            if listed and not all(isinstance(part, str) for part in value):
                raise InputError(f"{option(field.name)} must be a list of text; got {value!r}")

    def to_json(self) -> dict[str, Any]:
        named = [one for one in self.callbacks if isinstance(one, str)]
        return {**fields_to_json(replace(self, callbacks=named)), "space": self.space_name}

    @property
    def space_name(self) -> str:
        """The space as `search.json`, MLflow and messages have it."""
        return space_name(self.space)

    @property
    def title(self) -> str:
        """What searches and MLflow's experiment are called: after the data, or else after the space.

        A space of one's own has a name that says more.
        """
        named = _named_after(self.data) if self.data is not None and self.space_name in SPACES else ""
        return named or short_name(self.space_name)

    def absolute(self) -> "Settings":
        """Return the settings with whole paths of the data and of files of code, for any current folder."""
        return replace(
            self,
            space=loading.absolute(self.space) if isinstance(self.space, str) else self.space,
            backbone=None if self.backbone is None else loading.absolute(self.backbone),
            data=None if self.data is None else str(Path(self.data).expanduser().resolve()),
            sampler=loading.absolute(self.sampler),
            callbacks=[loading.absolute(one) if isinstance(one, str) else one for one in self.callbacks],
        )

    def load_space(self) -> Space:
        """Load the space with the chosen backbone. Raise InputError if there is none."""
        if self.backbone is None:
            return load(self.space)
        loading.hold(self.backbone)
        return load(self.space, loading.absolute(self.backbone), self.size)

    def user_code(self) -> list[str]:
        """Return the names of the user-defined code that a search with these settings runs."""
        given = (self.space, self.backbone, self.sampler, *self.callbacks)
        names = [name for name in given if isinstance(name, str)]
        return [name for name in names if loading.is_user_defined(name)]

    @property
    def limits(self) -> Limits:
        def read(text: str | None, option: str, parse: Any) -> float | None:
            return None if text is None else parse(text, option)

        return Limits(
            params=read(self.max_params, "--max-params", parse_count),
            macs=read(self.max_macs, "--max-macs", parse_count),
            memory=read(self.max_memory, "--max-memory", parse_size),
            latency=self.max_latency_ms,
        )

    @property
    def shape(self) -> TrialResources:
        """Of a trial, without the GPU that is the default where there are any."""
        return TrialResources(
            cpus=self.cpus_per_trial,
            gpus=self.gpus_per_trial or 0,
            workers=self.workers_per_trial,
            custom=parse_amounts(self.resource, "--resource"),
            labels=parse_labels(self.label, "--label"),
        )

    @property
    def seconds(self) -> float | None:
        """The time budget."""
        return None if self.budget is None else parse_seconds(self.budget, "--budget")

    @property
    def most(self) -> int | None:
        """The number of trials; None for as many as there is time for."""
        return self.trials if self.trials is not None or self.budget is not None else TRIALS

    @property
    def runtime(self) -> "Runtime":
        """The precision and way to compile, on this machine's CPU."""
        import torch  # takes seconds

        from automl.config.runtime import Runtime

        return Runtime(device=torch.device("cpu"), precision=self.precision, compile=self.compile)  # type: ignore[arg-type]

    @property
    def is_grid(self) -> bool:
        """Whether all cells of a grid are trained."""
        return self.sampler == GRID

    @property
    def grid_seeds(self) -> list[int]:
        """The seeds of each cell of a grid."""
        return [(self.seed + i) % 2**32 for i in range(self.seeds)]

    @property
    def shares_training(self) -> bool:
        """Whether placements go into shared partial trainings."""
        return self.init == "shared"

    def objectives(self, metric: str) -> list[str]:
        """Return the names of the objectives, given the primary metric of the task."""
        names = [metric] if self.objective is None else [n.strip() for n in self.objective.split(",")]
        for name in names:
            if name not in (metric, *COSTS):
                raise unknown("objective", name, (metric, *COSTS))
        if len(set(names)) < len(names) or len(names) > 3:
            raise InputError(f"--objective takes one to three different ones; got {self.objective!r}")
        return names

    def adjust(self, config: TrialConfig) -> TrialConfig:
        """Apply the settings to a configuration that the space drew."""
        data: dict[str, Any] = {"subset": self.subset}
        if self.data is not None:
            data["path"] = str(Path(self.data).expanduser().resolve())
        if self.size is not None:
            data["size"] = self.size
        training = {
            key: value
            for key in ("epochs", "batch_size", "mixup", "flip", "class_weights")
            if (value := getattr(self, key)) is not None
        }
        if self.augment is not None:
            training |= AUGMENT[self.augment]
        model = {"weights": self.weights, "weights_digest": self.weights_digest} if self.weights else {}
        metric = config.metric if self.metric is None else self.metric
        config = config.change(data=data, model=model, training=training, metric=metric, seed=self.seed)
        return with_shared_training(config) if self.shares_training else config

    def extended(
        self,
        trials: str | None,
        budget: str | None,
        ended: int,
        scheduling: Mapping[str, Any],
        seeds: int | None = None,
    ) -> "Settings":
        """Return the settings of the same search with another end and other scheduling, for `--resume`.

        trials: `+20` for 20 more than have ended, or a number in all.
        scheduling: values of the settings in `SCHEDULING_OPTIONS`. seeds: of each cell of a grid.
        """
        new = replace(self, **scheduling)
        if seeds is not None:
            if not self.is_grid:
                raise InputError("--seeds with --resume is for a grid, or with --confirm for a confirmation")
            if seeds < self.seeds:
                raise InputError(
                    f"--seeds must be at least {self.seeds}, with which this grid began; got {seeds}"
                )
            new = replace(new, seeds=seeds)
        if self.is_grid and trials is not None and trials.startswith("+"):
            raise InputError(
                f"--trials {trials} adds trials to a search; a grid has a fixed number of cells. Add seeds "
                f"with --seeds N"
            )
        if trials is not None:
            number = trials.removeprefix("+")
            if not number.isdecimal():
                raise InputError(f"--trials must be a number, or +N for N more; got {trials!r}")
            more = ended if trials.startswith("+") else 0
            new = replace(new, trials=more + int(number))
        if budget is not None:
            new = replace(new, budget=budget)
        return new


def with_shared_training(config: TrialConfig) -> TrialConfig:
    """Return `config` with its placement inserted late in the flat part of a plain training's schedule.

    Raises InputError for a single epoch.
    """
    epochs = config.training.epochs
    if epochs < 2:
        raise InputError(
            f"--init shared needs 2 epochs or more, since placements go in between two; got {epochs}"
        )
    at = min(max(1, round(INSERT_AT * epochs)), epochs - 1)
    return config.change(training={"insert_at": at, "schedule": "flat-cosine"})


def command(words: str, name: str, storage: str, *more: str) -> str:
    """Return a command about the search called `name`, such as `search --resume`, for a shell.

    more: words at its end.
    """
    where = [] if storage == STORAGE else ["--storage", storage]
    return f"automl {words} {shell([name, *where, *more])}"


def check_name(name: str) -> None:
    """Raise InputError if no folder can have this name."""
    if not re.fullmatch(r"\w[\w.-]{0,99}", name):
        raise InputError(
            f"--name may hold up to 100 letters, digits, '_' and, not first, '-' and '.'; got {name!r}"
        )
    if (size := len(name.encode())) > NAME_BYTES:
        raise InputError(
            f"--name may have up to {NAME_BYTES} bytes, as it names a folder, and {name!r} has {size}; "
            f"letters outside of ASCII take two to four bytes each. Give a shorter one"
        )


def option(setting: str) -> str:
    """Return the option of a setting on the command line."""
    return f"--{setting.replace('_', '-')}"


def given_as(setting: str, value: object) -> str:
    """Return a setting as an option with its value: `--seeds 6`, or `--no-sequential` for False."""
    if isinstance(value, bool):
        return option(setting if value else f"no_{setting}")
    return f"{option(setting)} {value}"


def short_name(space: str) -> str:
    """Return the name of a space as a part of the name of a folder or experiment.

    Of a function that is in another one, or has no name, what can stand there.
    """
    name = unicodedata.normalize("NFC", space.rpartition(":")[2].replace("<locals>.", ""))
    return re.sub(r"[^\w.-]+", "", name)[:TITLE] or "space"


def _named_after(data: str) -> str:
    """Return the name of a folder or archive of data as a part of other names."""
    name = re.sub(r"(\.tar)?\.\w{1,4}$", "", Path(data).expanduser().resolve().name)
    # A letter and its accent may be two characters in the name of a file, and the accent alone is no letter.
    return re.sub(r"[^\w-]+", "-", unicodedata.normalize("NFC", name)).strip("-")[:TITLE]


def draw_baseline(space: Space, settings: Settings) -> TrialConfig:
    """Draw the configuration of trial 0, independently of any study.

    Raises InputError where what the space gives does not fit it (`search.given`).
    """
    check_given(space)
    _, config = next(random_draws(space, 1, seed=settings.seed, given=space.baseline))
    if config is None:
        raise InputError(f"space {space.name!r} refuses its own baseline (TrialPruned)")
    return settings.adjust(config)
