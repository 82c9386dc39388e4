"""The four nouns of a search: what may be drawn, the trials, how one training runs, and where.

Each is valid: creating one with an invalid value raises InputError.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf, isfinite
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args

from attention.attention_table import check_name as check_type
from attention.spec import parse_option
from automl.base import loading
from automl.base.errors import InputError, check_utf8, unknown
from automl.base.lazy import resolve
from automl.base.options import option_name, split_option
from automl.base.text import absolute_data, check_name, data_name, short_name
from automl.base.units import (
    format_count,
    format_size,
    parse_amounts,
    parse_count,
    parse_labels,
    parse_seconds,
    parse_size,
)
from automl.config import search_options as declared
from cluster.resources import TrialResources
from search.choices import AUGMENT
from search.config import TrialConfig
from search.config.sections import ClassWeights
from search.config.tasks import declare_metric
from search.metric import Metric
from search.space import GRID, SPACES, Space, SpaceFunction, load_space, space_name, task_of_space

if TYPE_CHECKING:
    from automl.config.runtime import Runtime
    from search.drawn import Drawn


def format_cost(name: str, value: float) -> str:
    """Format a cost that can be limited, with its unit: `20 ms`, `4GB`, `5M`."""
    if name == "latency":
        return f"{value:.4g} ms"
    return format_size(value) if name in ("memory", "cache") else format_count(value)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Maximum costs of a trial. None means no limit.

    Attributes:
        params: Parameters of the model.
        macs: Multiply-accumulates for one input.
        memory: Memory of a training step [bytes].
        latency: Latency of one input [ms]. For a language model, of one decoded token.
        cache: Keys, values and states that a language model keeps while decoding [bytes].
    """

    params: float | None = None
    macs: float | None = None
    memory: float | None = None
    latency: float | None = None
    cache: float | None = None

    @property
    def nothing(self) -> bool:
        """True if no limit is set."""
        return self == Limits()

    def violations(self, profile: Mapping[str, float]) -> dict[str, float]:
        """Return the fraction by which each limit is exceeded. 0 or less means that it is met."""
        return {name: profile[name] / limit - 1 for name, limit in asdict(self).items() if limit is not None}

    def excess(self, profile: Mapping[str, float]) -> str | None:
        """Return a sentence that names the exceeded limits, or None."""
        violations = [
            f"{name} {format_cost(name, profile[name])} exceeds the limit of "
            f"{format_cost(name, getattr(self, name))}"
            for name, fraction in self.violations(profile).items()
            if fraction > 0
        ]
        return "; ".join(violations) or None


REFEREE = "referee"  # in place of a space: the trainings are commands, which `automl referee` compares
TRIALS = 16  # the default if neither trials nor a budget is set
EQUAL = ("time", "epochs")
# Options that the user's own training function does not get.
OF_TASKS = (
    "backbone", "backbone_option", "weights", "subset", "size", "batch_size", "mixup", "flip", "augment",
    "class_weights", "compile", "max_cache", "context", "full", "vocabulary", "distil",
    "validations_per_epoch",
)  # fmt: skip
# Options of the metric of a training function.
OF_FUNCTIONS = ("minimize", "margin", "unit", "chance")
# Names of types in messages.
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Question(declared.QuestionOptions):
    """The space with the user's choices: all that may be drawn."""

    def __post_init__(self) -> None:
        if not (callable(self.space) or isinstance(self.space, str)) or not self.space:
            raise InputError(
                f"--space must be a name of `automl spaces`, file.py:function or module:function, or from "
                f"Python a function; got {self.space!r}"
            )
        _check_types(self)
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if self.margin is not None and not 0 <= self.margin < inf:
            raise InputError(f"--margin must be 0 or more; got {self.margin:g}")
        if self.chance is not None and not isfinite(self.chance):
            raise InputError(f"--chance must be a finite number; got {self.chance:g}")
        if self.distil is not None and not 0 <= self.distil <= 1:
            raise InputError(f"--distil must lie between 0 and 1; got {self.distil:g}")
        _check_choice("augmentation", self.augment, tuple(AUGMENT))
        _check_choice("class weights", self.class_weights, get_args(ClassWeights))
        if self.study is not None:  # It names a folder.
            check_name(self.study, "--study")
        if self.train is not None:
            if not self.metric:
                raise InputError("--train needs --metric, the name of the metric that the function reports")
            _ = self.reported  # raises InputError for an invalid metric
        else:
            _ = self.backbone_options  # raises InputError for an invalid one
        self._check_attention()

    def _check_attention(self) -> None:
        types = self.attention_types or []
        if self.attention is not None and not types:
            raise InputError(f"--attention must name types, such as ssa,timm:se; got {self.attention!r}")
        for name in types:
            check_type(name)
        names = [loading.short_name(name) for name in types]
        if twice := [name for name in names if names.count(name) > 1]:
            raise InputError(f"--attention must name each type once, also files of one name; got {twice[0]}")

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

    def absolute(self) -> "Question":
        """Return the question with absolute paths of data and code files."""
        values = {key: getattr(self, key) for key in ("space", "train", "backbone")}
        names: dict[str, Any] = {
            key: loading.make_absolute(name) for key, name in values.items() if isinstance(name, str)
        }
        if self.attention_types is not None:
            names["attention"] = ",".join(map(loading.make_absolute, self.attention_types))
        return replace(self, **names, data=self._path)

    @property
    def _path(self) -> str | None:
        return None if self.data is None else absolute_data(self.data)

    def with_space(self, space: str | SpaceFunction | Space) -> "Question":
        """Return the question with another name or object of the same space or training function."""
        return replace(self, space=space, train=None if self.train is None else space)

    def open(self) -> "Drawn":
        """Load the space with the chosen backbone and attention. Raise InputError if it does not exist."""
        backbone = None if self.backbone is None else loading.make_absolute(self.backbone)
        types, options = self.attention_types, self.backbone_options
        for name in [*([] if backbone is None else [backbone]), *(types or [])]:
            loading.freeze_code(name)
        if self.train is None:
            if isinstance(self.space, str) and (spec := task_of_space(self.space)):
                spec.check_early(metric=self.metric, size=self.size)
            space = load_space(self.space, backbone, self.size, options)
            space = space.fine_tuned() if self.weights and space.fine_tuned else space
            space = space if self.full is None else space.with_full(self.full)
        else:
            function_space = resolve("automl.tasks.function.space:function_space")  # which imports torch
            name = loading.make_absolute(self.space_name)
            loading.freeze_code(name)
            space = function_space(
                name, self.reported, chance=self.chance, epochs=self.epochs, data=self._path
            )
        space = space if types is None else space.with_attention([*map(loading.make_absolute, types)])
        return self.draw(space)

    def draw(self, space: Space) -> "Drawn":
        """Return the draws of a space, with the user's choices applied to each configuration."""
        from search.drawn import Drawn  # it needs Optuna

        return Drawn(replace(space, adjust=self._adjust), self.seed)

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

    def _adjust(self, config: TrialConfig) -> TrialConfig:
        """Apply the user's choices to a configuration that the space drew."""
        data: dict[str, Any] = {} if self.subset is None else {"subset": self.subset}
        if self.data is not None:
            data["path"] = self._path
        for key in ("size", "context", "vocabulary"):
            if (value := getattr(self, key)) is not None:
                field = config.data.OPTIONS.get(key, key)
                if not hasattr(config.data, field):
                    raise InputError(f"{option_name(key)} does not apply to task {config.task}; leave it out")
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
        return config.change(data=data, model=model, training=training, metric=metric, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class SearchPlan(declared.PlanOptions):
    """The trials: how many, chosen by what, and when they end."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_counts(self, "trials", "seeds")
        if not 0 <= self.baseline_share <= 1:
            raise InputError(f"--baseline-share must be between 0 and 1; got {self.baseline_share:g}")
        if self.is_grid and self.warm_start is not None:
            raise InputError("--sampler grid trains all cells; leave --warm-start out")
        _ = self.seconds  # raises InputError for an invalid value

    @property
    def seconds(self) -> float | None:
        """Time budget [s]."""
        return None if self.budget is None else parse_seconds(self.budget, "--budget")

    @property
    def most(self) -> int | None:
        """Maximum number of trials. None: only the time budget limits it."""
        return self.trials if self.trials is not None or self.budget is not None else TRIALS

    @property
    def is_grid(self) -> bool:
        """True if all cells of a grid are trained."""
        return self.sampler == GRID

    def extended(
        self, trials: str | None, budget: str | None, ended: int, seeds: int | None = None
    ) -> "SearchPlan":
        """Return the plan with another budget, and of a grid more seeds, for `--resume`.

        `trials` is `+20` for 20 more than have `ended`, or a total number.
        """
        new = self
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
        return new if budget is None else replace(new, budget=budget)


@dataclass(frozen=True, kw_only=True)
class Terms(declared.TermsOptions):
    """Limits, time and arithmetic of one training."""

    def __post_init__(self) -> None:
        _check_types(self)
        if self.max_latency_ms is not None and not 0 < self.max_latency_ms < inf:
            raise InputError(f"--max-latency-ms must be above 0; got {self.max_latency_ms:g}")
        _check_counts(self, "validations_per_epoch")
        _check_choice("precision", self.precision, get_args(declared.Precision))
        _check_choice("value of --compile", self.compile, get_args(declared.Compile))
        _ = self.limits  # raises InputError for an invalid value

    @property
    def limits(self) -> Limits:
        """Return the parsed limits."""

        def read(key: str, parse: Any) -> float | None:
            text = getattr(self, key)
            return None if text is None else parse(text, option_name(key))

        return Limits(
            params=read("max_params", parse_count),
            macs=read("max_macs", parse_count),
            memory=read("max_memory", parse_size),
            latency=self.max_latency_ms,
            cache=read("max_cache", parse_size),
        )

    @property
    def runtime(self) -> "Runtime":
        """Precision and compilation, on this machine's CPU."""
        import torch  # takes seconds

        from automl.config.runtime import Runtime

        return Runtime(device=torch.device("cpu"), **self.arithmetic)

    @property
    def arithmetic(self) -> dict[str, Any]:
        """Precision and compilation, as arguments of a `Runtime`."""
        return {"precision": self.precision, "compile": self.compile}

    def confirming(self) -> "Terms":
        """Return the terms of a confirmation: without limits, and with scores of the test split."""
        return Terms(equal=self.equal, test=True, **self.arithmetic)


@dataclass(frozen=True, kw_only=True)
class Place(declared.PlaceOptions):
    """Name, storage, resources and callbacks: where trials run, and what is kept."""

    def __post_init__(self) -> None:
        _check_types(self)
        _check_counts(self, "keep", "concurrent")
        if self.name is not None:
            check_name(self.name, "--name")
        _ = self.shape  # raises InputError for an invalid value

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


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a list that is separated by commas. None stays None."""
    return None if text is None else [name for part in text.split(",") if (name := part.strip())]


def _check_types(noun: Any) -> None:
    """Raise InputError for the first value of a wrong type."""
    for field in fields(noun):
        value = getattr(noun, field.name)
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        names = [TYPE_NAMES[kind] for kind in kinds if kind in TYPE_NAMES]
        is_valid = type(value) in kinds or (type(value) is int and float in kinds)
        if isinstance(value, str):
            check_utf8(option_name(field.name), value)
        if names and not is_valid:
            raise InputError(f"{option_name(field.name)} must be {names[0]}; got {value!r}")
        is_list = isinstance(value, tuple) and field.name not in ("callbacks", "space")
        if is_list and not all(isinstance(item, str) for item in value):
            raise InputError(f"{option_name(field.name)} must be a list of text; got {value!r}")


def _check_counts(noun: Any, *options: str) -> None:
    for key in options:
        if (value := getattr(noun, key)) is not None and value < 1:
            raise InputError(f"{option_name(key)} must be 1 or more; got {value}")


def _check_choice(what: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise unknown(what, value, choices)
