"""User settings of a search, stored in its `search.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention import InputError, live_objects, loading, unknown
from automl.config.command_line import STORAGE, option_name
from automl.config.limits import Limits
from automl.config.names import data_name, short_name
from automl.config.setting_checks import check_settings
from automl.config.shared_training import with_shared_training
from automl.config.units import parse_amounts, parse_count, parse_labels, parse_seconds, parse_size
from cluster.resources import TrialResources
from search.callback import Callback
from search.choices import AUGMENT
from search.config import TrialConfig
from search.config.tasks import declare_metric, resolve
from search.grid import GRID
from search.metric import Metric
from search.serialise import convert_fields
from search.space import Space, SpaceFunction, space_name
from search.spaces import SPACES, load_space

if TYPE_CHECKING:
    from automl.config.runtime import Runtime

COSTS = ("latency", "params", "macs")  # objectives beside the task's metric
REFEREE = "referee"  # in place of a space: the trainings are commands, which `automl referee` compares
TRIALS = 16  # the default if neither trials nor a budget is set
# Fields of a configuration's data by setting. A task has the first of them that its data have.
DATA_FIELDS = {"size": ("size", "context"), "context": ("decoding",), "vocabulary": ("vocabulary",)}
# Settings of where and when trials run. They do not change what is searched.
SCHEDULING_OPTIONS = ("resource", "label", "concurrent", "callbacks", "stop")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a search. `run_search` takes them as keyword arguments.

    They are stored in `search.json`. A function is stored by its name, and only callbacks given by name
    are stored.

    Attributes:
        space: Search space: a name of `automl spaces`, `file.py:function` or `package.module:function`. Or a
            `Space`, or a function that takes an Optuna trial and returns a `TrialConfig`.
        train: Training function, instead of a space: `file.py:train`, `package.module:train`, or from Python
            a function of an `automl.Trial`.
        minimize: True if a lower value of the metric that a training function reports is better, False if a
            higher one is. By default higher, but a name such as `val_loss` needs a direction.
        margin: Smallest difference of that metric that matters, in its unit. Default: that of a built-in
            metric of this name, otherwise 0.
        unit: Unit of that metric, such as `px`.
        chance: Score of guessing in that metric. No verdict is given unless a model is above it.
        backbone: Backbone, instead of the space's: `torchvision:NAME`, `timm:NAME`, `file.py:Net`,
            `package.module:Net` or a registered name. For a language model `hf:FOLDER` or `hf:NAME`.
        attention: Attention types to choose from, instead of the space's, separated by commas: names of
            `automl attentions`, `timm:NAME`, `file.py:Class` or `package.module:Class`. Or a list of them.
        weights: Initial weights of every trial: `default` for the published ones of the backbone, or the
            path of a file, a trial's folder or an export's folder.
        weights_digest: Hash of the weights file. Computed by default.
        data: Folder or archive to read instead of downloading the space's dataset.
        trials: Number of configurations to try. Default: 16 if `budget` is not set either.
        budget: Time limit, such as `2h`. Trials that run then continue to their next rung.
        epochs: Epochs of a whole trial, instead of the space's.
        size: Side of the images [pixels] or tokens of a training window, instead of the space's.
        subset: Fraction of the data to use.
        name: Name of the search, unique in `storage`. Default: the space and the time.
        batch_size: Batch size, instead of the space's.
        mixup: Alpha of mixup, instead of the space's. 0 switches it off.
        flip: Mirror images at random. Default: True for photographs, False for digits.
        augment: Strength of augmentation: `light`, `standard` or `strong`.
        class_weights: Weights of the classes in the loss: `none` or `balanced`.
        seed: Seed of the sampler and of every trial.
        seeds: Number of trainings of each cell with the sampler `grid`. Their seeds start at `seed`.
        test: With the sampler `grid`, also score the test split after the last epoch.
        equal: Budget held equal across trials. `time`: a trial with slower epochs than the baseline gets
            fewer of them. `epochs`: all get the same number. Commands have `time` or `none`.
        init: Start of each trial. `scratch`: new weights, or `weights`. `shared`: a shared partial training
            of the baseline, continued with the trial's placement and the baseline's hyperparameters.
        shared_trainings: Initial number of shared partial trainings. A placement that was inserted into all
            of them gets another one.
        sampler: `tpe`, `placement`, `random`, `gp`, `nsga2`, `cmaes`, `grid` or `package.module:Sampler`.
            `auto` is `placement` if the space draws placements and there is one objective, otherwise `tpe`.
        metric: Primary metric, instead of the task's default, such as `macro_f1`.
        objective: One to three objectives, separated by commas: the metric, `latency`, `params`, `macs`.
            Default: the metric.
        baseline_share: Fraction of the trials that tune the baseline.
        warm_start: Name of an earlier search of the same space, whose trials initialise the sampler.
        prior: Names of earlier searches on other data, separated by commas. Their effects of placements are
            the prior mean of the sampler's model. Or a list of names.
        max_params: Maximum number of parameters, such as `5M`.
        max_macs: Maximum MACs for one input, such as `2G`.
        max_memory: Maximum memory of a training step, such as `4GB`.
        max_latency_ms: Maximum latency of one input [ms]. For a language model, of one decoded token.
        max_cache: Maximum size of the keys, values and states that a language model keeps while decoding,
            such as `16MB`.
        context: Tokens before the decoded one at which the cost of decoding counts. Default: those of a
            training window.
        full: Number of layers of a hybrid decoder that keep full attention. Default: the space's.
        vocabulary: Size of the tokenizer of texts or code. 0 takes the bytes of a text as tokens.
        distil: Weight in the loss of the divergence from the predictions of a decoder with its initial
            weights and its own attention, from 0 to 1.
        keep: Number of best trials whose checkpoints are kept. With several objectives, the Pareto front is
            kept.
        cpus_per_trial: CPU cores of each worker.
        gpus_per_trial: GPUs of each worker. A fraction shares a GPU. Default: `auto`, which is 0 without any,
            and 1/2, 1/4 or 1/8 if the baseline leaves as much of a GPU idle, otherwise 1.
        overlap_kernels: Let kernels of trials that share a GPU overlap, by NVIDIA's Multi-Process Service.
        workers_per_trial: Number of processes that train one trial, each on a part of every batch.
        resource: Custom Ray resources of each worker, as `NAME=AMOUNT`.
        label: Labels of the nodes that may run trials, as `KEY=VALUE`.
        stop: End of a search before its trials or time are used up. `decided`: once the model of placements
            is certain that none matters, or that one is the best or within the margin of it. `never`: none.
            Default: `decided` with `init` `shared`, otherwise `never`.
        concurrent: Maximum number of trials at once. It is requested from Ray even beyond the current
            capacity, which triggers autoscaling. Default: as many as fit.
        precision: `auto`, `bf16`, `fp16` or `fp32`.
        compile: Execution of training steps: `auto`, `off`, `graphs` or `inductor`.
        storage: Folder of all searches, or its address in an object store. The search gets the folder `name`
            in it.
        callbacks: Objects of `Callback`, or names of such classes: `file.py:Name` or `package.module:Name`.

    Raises:
        InputError: A value is invalid.

    Example:
        >>> import automl
        >>> automl.Settings(space="digits", max_params="5M").limits.params
        5000000.0
    """

    space: str | SpaceFunction | Space = ""
    train: Any = None
    minimize: bool | None = None
    margin: float | None = None
    unit: str | None = None
    chance: float | None = None
    backbone: str | None = None
    attention: str | None = None
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
    prior: str | None = None
    max_params: str | None = None
    max_macs: str | None = None
    max_memory: str | None = None
    max_latency_ms: float | None = None
    max_cache: str | None = None
    context: int | None = None
    full: int | None = None
    vocabulary: int | None = None
    distil: float | None = None
    keep: int = 3
    cpus_per_trial: float = 1
    gpus_per_trial: float | None = None
    overlap_kernels: bool = False
    workers_per_trial: int = 1
    resource: Sequence[str] = ()
    label: Sequence[str] = ()
    stop: str | None = None
    concurrent: int | None = None
    precision: str = "auto"
    compile: str = "auto"
    storage: str = STORAGE
    callbacks: Sequence[str | Callback] = ()

    def __new__(cls, *arguments: object, **settings: object) -> "Settings":
        """Reject unknown settings, as the command line rejects unknown options."""
        if arguments:
            raise InputError(
                f"settings must be given by name, as in run_search(space='digits'); got {arguments[0]!r} "
                f"without a name"
            )
        for key in settings:
            if key not in cls.__dataclass_fields__:
                raise unknown("setting", key, cls.__dataclass_fields__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for key in ("resource", "label", "callbacks"):  # JSON and the command line have lists
            value = getattr(self, key) or ()
            object.__setattr__(self, key, tuple(value) if isinstance(value, list | tuple) else (value,))
        for key in ("attention", "prior"):
            names = getattr(self, key)
            if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
                object.__setattr__(self, key, ",".join(names))
        # From Python, paths and numbers are accepted where the command line has text.
        for key in ("data", "weights", "storage", "max_params", "max_macs", "max_memory", "max_cache"):
            value = getattr(self, key)
            if isinstance(value, PathLike):
                object.__setattr__(self, key, fspath(value))
            elif key.startswith("max_") and type(value) in (int, float):
                object.__setattr__(self, key, f"{value:.15g}")
        if isinstance(self.gpus_per_trial, str):
            object.__setattr__(self, "gpus_per_trial", _parse_gpus(self.gpus_per_trial))
        self._adopt_function()
        check_settings(self)
        # Each of these raises InputError for an invalid value.
        _ = (self.limits, self.shape, self.seconds, self.runtime, TrialConfig(seed=self.seed))

    def _adopt_function(self) -> None:
        """Make the training function the search's space, if there is one."""
        if self.train is None:
            return
        if callable(train := self.train):
            if self.space is train:
                object.__setattr__(self, "space", "")
            object.__setattr__(self, "train", live_objects.name_of(train))
        if not isinstance(self.train, str):
            raise InputError(
                f"--train must be file.py:function, or from Python a function; got {self.train!r}"
            )
        if self.space not in ("", self.train):
            raise InputError(f"--train is a space of its own; leave out --space {self.space_name}")
        object.__setattr__(self, "space", self.train)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON, with callbacks by name."""
        names = [callback for callback in self.callbacks if isinstance(callback, str)]
        return {**convert_fields(replace(self, callbacks=names)), "space": self.space_name}

    @property
    def space_name(self) -> str:
        """The name of the space in `search.json`, MLflow and messages."""
        return space_name(self.space)

    @property
    def title(self) -> str:
        """The prefix of the search's name, and the name of its MLflow experiment.

        A user-defined space gives its own name. With a built-in space it is the name of the data, if set. Of
        a training function it is that of the data or of its folder, since most are called `train`.
        """
        of_data = ""
        if self.data is not None and (self.space_name in SPACES or self.train is not None):
            of_data = data_name(self.data)
        file = Path(loading.make_absolute(self.space_name).rpartition(":")[0])
        folder = data_name(str(file.parent)) if self.train is not None and file.suffix == ".py" else ""
        return of_data or folder or short_name(self.space_name)

    def absolute(self) -> "Settings":
        """Return the settings with absolute paths of data and code files."""
        return replace(
            self,
            space=loading.make_absolute(self.space) if isinstance(self.space, str) else self.space,
            train=None if self.train is None else loading.make_absolute(self.train),
            backbone=None if self.backbone is None else loading.make_absolute(self.backbone),
            attention=None
            if self.attention_types is None
            else ",".join(map(loading.make_absolute, self.attention_types)),
            data=None if self.data is None else str(Path(self.data).expanduser().resolve()),
            sampler=loading.make_absolute(self.sampler),
            callbacks=[loading.make_absolute(c) if isinstance(c, str) else c for c in self.callbacks],
        )

    def with_space(self, space: str | SpaceFunction | Space) -> "Settings":
        """Return the settings with another name or object of the same space or training function."""
        return replace(self, space=space, train=None if self.train is None else space)

    def load_space(self) -> Space:
        """Load the space with the chosen backbone and attention. Raise InputError if it does not exist."""
        backbone = None if self.backbone is None else loading.make_absolute(self.backbone)
        types = self.attention_types
        for name in [*([] if backbone is None else [backbone]), *(types or [])]:
            loading.freeze_code(name)
        if self.train is None:
            space = load_space(self.space, backbone, self.size)
            space = space if self.full is None else space.with_full(self.full)
        else:
            function_space = resolve("automl.functions.space:function_space")  # which imports torch
            name = loading.make_absolute(self.space_name)
            loading.freeze_code(name)
            space = function_space(
                name, self.reported, chance=self.chance, epochs=self.epochs, data=self.absolute().data
            )
        return space if types is None else space.with_attention([*map(loading.make_absolute, types)])

    @property
    def reported(self) -> Metric:
        """The metric that a training function reports."""
        assert self.metric is not None, "a training function needs a metric"
        return declare_metric(self.metric, minimize=self.minimize, margin=self.margin, unit=self.unit)

    @property
    def attention_types(self) -> list[str] | None:
        """The names in `attention`."""
        return split_names(self.attention)

    @property
    def earlier_searches(self) -> list[str]:
        """The names in `prior`."""
        return split_names(self.prior) or []

    def user_code(self) -> list[str]:
        """Return the names of the user-defined code that a search with these settings runs."""
        values = (self.space, self.backbone, *(self.attention_types or ()), self.sampler, *self.callbacks)
        names = [name for name in values if isinstance(name, str)]
        return [name for name in names if loading.is_user_defined(name)]

    @property
    def limits(self) -> Limits:
        """Return the parsed limits."""

        def read(text: str | None, option: str, parse: Any) -> float | None:
            return None if text is None else parse(text, option)

        return Limits(
            params=read(self.max_params, "--max-params", parse_count),
            macs=read(self.max_macs, "--max-macs", parse_count),
            memory=read(self.max_memory, "--max-memory", parse_size),
            latency=self.max_latency_ms,
            cache=read(self.max_cache, "--max-cache", parse_size),
        )

    @property
    def shape(self) -> TrialResources:
        """Resources of a trial, without GPUs if `gpus_per_trial` is not set."""
        return TrialResources(
            cpus=self.cpus_per_trial,
            gpus=self.gpus_per_trial or 0,
            workers=self.workers_per_trial,
            custom=parse_amounts(self.resource, "--resource"),
            labels=parse_labels(self.label, "--label"),
        )

    @property
    def seconds(self) -> float | None:
        """Time budget [s]."""
        return None if self.budget is None else parse_seconds(self.budget, "--budget")

    @property
    def most(self) -> int | None:
        """Maximum number of trials. None: only the time budget limits it."""
        return self.trials if self.trials is not None or self.budget is not None else TRIALS

    @property
    def runtime(self) -> "Runtime":
        """Precision and compilation, on this machine's CPU."""
        import torch  # takes seconds

        from automl.config.runtime import Runtime

        return Runtime(device=torch.device("cpu"), precision=self.precision, compile=self.compile)  # type: ignore[arg-type]

    @property
    def is_referee(self) -> bool:
        """True if commands are compared, without a search."""
        return self.space == REFEREE

    @property
    def is_grid(self) -> bool:
        """True if all cells of a grid are trained."""
        return self.sampler == GRID

    @property
    def grid_seeds(self) -> list[int]:
        """Seeds of each cell of a grid."""
        return [(self.seed + i) % 2**32 for i in range(self.seeds)]

    @property
    def stops_decided(self) -> bool:
        """Return True if the search ends once its placements are decided."""
        return self.stop == "decided" or (self.stop is None and self.shares_training)

    @property
    def shares_training(self) -> bool:
        """True if trials continue shared partial trainings."""
        return self.init == "shared"

    def objectives(self, metric: str) -> list[str]:
        """Return the names of the objectives, given the primary metric of the task."""
        names = [metric] if self.objective is None else [n.strip() for n in self.objective.split(",")]
        for name in names:
            if name not in (metric, *COSTS):
                raise unknown("objective", name, (metric, *COSTS))
        if len(set(names)) < len(names) or len(names) > 3:
            raise InputError(f"--objective must be one to three different names; got {self.objective!r}")
        return names

    def adjust(self, config: TrialConfig) -> TrialConfig:
        """Apply the settings to a configuration that the space drew."""
        data: dict[str, Any] = {"subset": self.subset}
        if self.data is not None:
            data["path"] = str(Path(self.data).expanduser().resolve())
        for setting, fields_of_tasks in DATA_FIELDS.items():
            if (value := getattr(self, setting)) is None:
                continue
            field = next((name for name in fields_of_tasks if hasattr(config.data, name)), None)
            if field is None:
                raise InputError(f"{option_name(setting)} does not apply to task {config.task}; leave it out")
            data[field] = value
        training = {
            key: value
            for key in ("epochs", "batch_size", "mixup", "flip", "class_weights", "distil")
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
        """Return the settings with another budget and other scheduling, for `--resume`.

        Args:
            trials: `+20` for 20 more than have ended, or a total number.
            budget: The new time limit.
            ended: The number of trials that have ended.
            scheduling: New values of `SCHEDULING_OPTIONS`.
            seeds: The new number of trainings of each cell of a grid.

        Raises:
            InputError: A value is invalid, or does not apply to this search.
        """
        new = replace(self, **scheduling)
        if seeds is not None:
            if not self.is_grid:
                raise InputError("--seeds with --resume needs a grid, or --confirm; leave --seeds out")
            if seeds < self.seeds:
                raise InputError(
                    f"--seeds must be at least {self.seeds}, the number this grid started with; got {seeds}"
                )
            new = replace(new, seeds=seeds)
        if self.is_grid and trials is not None and trials.startswith("+"):
            raise InputError(
                f"--trials {trials} cannot extend a grid, which has a fixed number of cells. Add seeds with "
                f"--seeds N"
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


def _parse_gpus(text: str) -> float | None:
    """Return the value of `--gpus-per-trial`. None stands for `auto`."""
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"--gpus-per-trial must be auto or a number such as 0.5; got {text!r}") from None


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a list that is separated by commas. None stays None."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
