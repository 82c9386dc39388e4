"""User settings of a search, stored in its `search.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.spec import parse_option
from automl.base import live_objects, loading
from automl.base.errors import InputError, unknown
from automl.base.lazy import resolve
from automl.base.names import data_name, short_name
from automl.base.options import document_fields, option_name, split_option
from automl.base.serialise import convert_fields
from automl.base.units import parse_amounts, parse_count, parse_labels, parse_seconds, parse_size
from automl.config.limits import Limits
from automl.config.search_options import RuntimeOptions, SearchOptions
from automl.config.setting_checks import check_settings
from cluster.resources import TrialResources
from search.callback import Callback
from search.choices import AUGMENT
from search.config import TrialConfig
from search.config.tasks import declare_metric
from search.grid import GRID
from search.metric import Metric
from search.space import Space, SpaceFunction, space_name
from search.spaces import SPACES, load_space

if TYPE_CHECKING:
    from automl.config.runtime import Runtime

COSTS = ("latency", "params", "macs")  # objectives beside the task's metric
REFEREE = "referee"  # in place of a space: the trainings are commands, which `automl referee` compares
INSERT_AT = 3 / 4  # of the epochs of a shared partial training: in the flat part of its schedule
TRIALS = 16  # the default if neither trials nor a budget is set
# Fields of a configuration's data by setting. A task has the first of them that its data have.
DATA_FIELDS = {"size": ("size", "context"), "context": ("decoding",), "vocabulary": ("vocabulary",)}
# Settings of where and when trials run. They do not change what is searched.
SCHEDULING_OPTIONS = ("resource", "label", "concurrent", "callbacks", "stop")


@document_fields
@dataclass(frozen=True, kw_only=True)
class Settings(RuntimeOptions, SearchOptions):
    """Settings of a search. `run_search` takes them as keyword arguments.

    They are stored in `search.json`. A function is stored by its name, and only callbacks given by name
    are stored.

    Raises:
        InputError: A value is invalid.

    Example:
        >>> import automl
        >>> automl.Settings(space="digits", max_params="5M").limits.params
        5000000.0
    """

    if TYPE_CHECKING:  # imported only for their types
        space: str | SpaceFunction | Space = ""
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
        # JSON and the command line have lists, or None.
        for key in (declared.name for declared in fields(self) if declared.default == ()):
            value = getattr(self, key) or ()
            object.__setattr__(self, key, tuple(value) if isinstance(value, list | tuple) else (value,))
        names = self.attention
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            object.__setattr__(self, "attention", ",".join(names))
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
        _ = (self.limits, self.shape, self.seconds, self.backbone_options)

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
        if self.study is not None:
            return self.study
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
        types, options = self.attention_types, self.backbone_options
        for name in [*([] if backbone is None else [backbone]), *(types or [])]:
            loading.freeze_code(name)
        if self.train is None:
            space = load_space(self.space, backbone, self.size, options)
            space = space if self.full is None else space.with_full(self.full)
        else:
            function_space = resolve("automl.tasks.function.space:function_space")  # which imports torch
            name = loading.make_absolute(self.space_name)
            loading.freeze_code(name)
            space = function_space(
                name, self.reported, chance=self.chance, epochs=self.epochs, data=self.absolute().data
            )
        return space if types is None else space.with_attention([*map(loading.make_absolute, types)])

    @property
    def backbone_options(self) -> dict[str, Any]:
        """The parsed options of the backbone. Raise InputError for another form than NAME=VALUE."""
        if self.backbone_option and self.backbone is None:
            raise InputError(
                f"--option {self.backbone_option[0]} is for --backbone; name one, or leave it out"
            )
        return {name: parse_option(value) for name, value in map(split_option, self.backbone_option)}

    @property
    def reported(self) -> Metric:
        """The metric that a training function reports."""
        assert self.metric is not None, "a training function needs a metric"
        return declare_metric(self.metric, minimize=self.minimize, margin=self.margin, unit=self.unit)

    @property
    def attention_types(self) -> list[str] | None:
        """The names in `attention`."""
        return split_names(self.attention)

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
    def has_space(self) -> bool:
        """True for a search. False if commands are compared."""
        return self.space != REFEREE

    @property
    def resume_command(self) -> str:
        """The command that resumes it, before its name."""
        return "search --resume" if self.has_space else "referee --resume"

    @property
    def is_grid(self) -> bool:
        """True if all cells of a grid are trained."""
        return self.sampler == GRID

    @property
    def grid_seeds(self) -> list[int]:
        """Seeds of each cell of a grid."""
        return [(self.seed + i) % 2**32 for i in range(self.seeds)]

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
        data: dict[str, Any] = {} if self.subset is None else {"subset": self.subset}
        if self.data is not None:
            data["path"] = str(Path(self.data).expanduser().resolve())
        for setting, fields_of_tasks in DATA_FIELDS.items():
            if (value := getattr(self, setting)) is None:
                continue
            field = next((name for name in fields_of_tasks if hasattr(config.data, name)), None)
            if field is None:
                raise InputError(f"{option_name(setting)} does not apply to task {config.task}; leave it out")
            data[field] = value
        if self.vocabulary == 0 and getattr(config.data, "tokenizer", False):
            raise InputError("--vocabulary 0 is of bytes, and the backbone has a tokenizer; leave it out")
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


def with_shared_training(config: TrialConfig) -> TrialConfig:
    """Return `config` with its placement inserted late in the flat phase of the baseline's schedule.

    Raise InputError if it has a single epoch.
    """
    epochs = config.training.epochs
    if epochs < 2:
        raise InputError(
            f"--init shared needs 2 epochs or more, as placements are inserted after one; got {epochs}"
        )
    at = min(max(1, round(INSERT_AT * epochs)), epochs - 1)
    return config.change(training={"insert_at": at, "schedule": "flat-cosine"})


def _parse_gpus(text: str) -> float | None:
    """Return the value of `--gpus-per-trial`. None stands for `auto`."""
    try:
        return None if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"--gpus-per-trial must be auto or a number such as 0.5; got {text!r}") from None


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a list that is separated by commas. None stays None."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]
