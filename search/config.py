"""The configuration of one trial: everything that decides what a training computes.

Frozen dataclasses that round-trip through JSON. Reading refuses unknown keys and reports all that is
wrong at once, because a person who mends one mistake at a time mends them after one long wait each.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from attention import InputError, Spec, unknown
from backbones import BACKBONES, Placement, check_options
from search.loading import absolute, load_object

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["one-cycle", "flat-cosine"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learned from, whatever kind of data it is.

    source: a name of the task's sources. path: what is read instead of downloading the source.
    subset: stratified fraction of the training and validation inputs that is used.
    """

    source: str = ""
    path: str | None = None
    subset: float = 1.0

    def problems(self) -> Iterator[str]:
        if not 0 < self.subset <= 1:
            yield f"data.subset must be above 0 and at most 1; got {self.subset}"


@dataclass(frozen=True, kw_only=True)
class ImageData(Data):
    """Images. size: side of the squares in pixels. source: `folder` for images of one's own."""

    source: str = "digits"
    size: int = 32

    def problems(self) -> Iterator[str]:
        # Backbones halve five times; with less than one position left to halve, oneDNN's bfloat16
        # gradients of a strided convolution are not even initialised (torch 2.15).
        if not 24 <= self.size <= 1024:
            yield f"data.size must lie between 24 and 1024 pixels; got {self.size}"
        yield from super().problems()


@dataclass(frozen=True, kw_only=True)
class SequenceData(Data):
    """Series of sensor readings. source: `ucihar`, or `series` for files of one's own."""

    source: str = "series"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A backbone of the table, its options, and the attention at each site."""

    backbone: str = "xresnet18"
    options: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        if self.backbone not in BACKBONES:
            yield str(unknown("backbone", self.backbone, BACKBONES))
            return
        try:
            check_options(self.backbone, self.options)
        except InputError as error:
            yield str(error)
        width = self.options.get("width")
        if width is not None and not (isinstance(width, int | float) and 1 / 16 <= width <= 16):
            yield f"model.options.width must lie between 1/16 and 16; got {width}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is learned, whatever the task. The defaults are the published ones of SimpleSelfAttention."""

    epochs: int = 5
    batch_size: int = 64
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    schedule: Schedule = "one-cycle"

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"
        if self.batch_size < 2:
            yield f"training.batch_size must be 2 or more, for batch norm; got {self.batch_size}"
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            yield f"training.learning_rate must be above 0; got {self.learning_rate}"
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            yield f"training.weight_decay must be 0 or more; got {self.weight_decay}"


@dataclass(frozen=True, kw_only=True)
class ClassificationTraining(Training):
    """With cross-entropy."""

    label_smoothing: float = 0.1

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not 0 <= self.label_smoothing < 1:
            yield f"training.label_smoothing must be at least 0 and below 1; got {self.label_smoothing}"


@dataclass(frozen=True, kw_only=True)
class ImageTraining(ClassificationTraining):
    """mixup: alpha of the beta distribution that mixing weights are drawn from; 0 is off."""

    mixup: float = 0.0

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if not (isfinite(self.mixup) and self.mixup >= 0):
            yield f"training.mixup must be 0 or more; got {self.mixup}"


@dataclass(frozen=True, kw_only=True)
class TaskConfigs:
    """The types of a task's configuration, and `dimensions`: of the inputs of backbones that fit it."""

    data: type[Data]
    training: type[Training]
    dimensions: int


# A task of one's own, `file.py:Class`, has such a value as its attribute `configs`.
TASK_CONFIGS: Mapping[str, TaskConfigs] = {
    "image-classification": TaskConfigs(data=ImageData, training=ImageTraining, dimensions=2),
    "sequence-classification": TaskConfigs(data=SequenceData, training=ClassificationTraining, dimensions=1),
}


def configs_of(task: str) -> TaskConfigs:
    """The types of the configuration of `task`. Raises InputError when there is no such task."""
    if task in TASK_CONFIGS:
        return TASK_CONFIGS[task]
    found = getattr(load_object("task", task, TASK_CONFIGS), "configs", None)
    if not isinstance(found, TaskConfigs):
        raise InputError(f"task {task!r} must have an attribute `configs`, a search.config.TaskConfigs")
    return found


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """One trial. Raises InputError, naming every problem, when a value cannot work.

    task: `image-classification`, `sequence-classification`, `file.py:Class` or `package.module:Class`. It
        decides which types `data` and `training` are of, whose defaults stand where they are not given.
    seed: decides initial weights, data order and augmentation.
    """

    task: str = "image-classification"
    data: Data = None  # type: ignore[assignment]
    model: Model = field(default_factory=Model)
    training: Training = None  # type: ignore[assignment]
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", absolute(self.task))
        configs, problems = configs_of(self.task), []
        for name, kind in (("data", configs.data), ("training", configs.training)):
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(value, kind):
                problems.append(f"{name} of task {self.task} must be a {kind.__name__}; got {value!r}")
        if not problems:
            problems += [p for part in (self.data, self.model, self.training) for p in part.problems()]
        backbone = BACKBONES.get(self.model.backbone)
        if backbone is not None and backbone.dimensions != configs.dimensions:
            fit = [name for name, other in BACKBONES.items() if other.dimensions == configs.dimensions]
            problems.append(
                f"backbone {self.model.backbone} takes inputs with {backbone.dimensions} spatial dimensions, "
                f"and those of task {self.task} have {configs.dimensions}; choose from {', '.join(fit)}"
            )
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if problems:
            raise InputError(_together(problems))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        value = asdict(self)
        value["model"]["placement"] = {s: spec.to_json() for s, spec in self.model.placement.items()}
        return value

    @classmethod
    def from_json(cls, value: object) -> "TrialConfig":
        """The inverse of `to_json`; what is left out takes its default."""
        problems: list[str] = []
        config = _read(cls, value, "", problems)
        if problems:
            raise InputError(_together(problems))
        assert isinstance(config, TrialConfig)
        return config

    def change(self, **parts: Mapping[str, Any] | Any) -> "TrialConfig":
        """A copy with some values changed: `config.change(data={"size": 64}, seed=1)`."""
        new = {}
        for name, value in parts.items():
            part = getattr(self, name)
            if not isinstance(value, Mapping):
                new[name] = value
                continue
            known = [f.name for f in fields(part)]
            for key in value:
                if key not in known:
                    raise unknown(f"key of the {name} of task {self.task}", key, known)
            new[name] = replace(part, **value)
        return replace(self, **new)


def _together(problems: list[str]) -> str:
    if len(problems) == 1:
        return f"configuration: {problems[0]}"
    return "\n  ".join([f"configuration: {len(problems)} problems", *problems])


def _read(kind: Any, value: object, where: str, problems: list[str]) -> Any:
    """`value` as `kind`, or None with what is wrong with it added to `problems`."""
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, Mapping):
            problems.append(f"{where or 'the whole'} must be an object; got {value!r}")
            return None
        known = [f.name for f in fields(kind)]
        for key in value:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                problems.append(f"unknown key {where + str(key)!r}; known: {', '.join(known)}.{hint}")
        hints, read = get_type_hints(kind), {}
        if kind is TrialConfig:
            configs = configs_of(str(value.get("task", TrialConfig.task)))
            hints |= {"data": configs.data, "training": configs.training}
        for key in known:
            if key in value:
                before = len(problems)
                item = _read(hints[key], value[key], f"{where}{key}.", problems)
                if len(problems) == before:
                    read[key] = item
        if not where:  # the whole checks itself, which repeats what its parts have said
            return None if problems else kind(**read)
        part: Any = kind(**read)  # a value of the wrong type stands aside, so that the others are checked
        problems += part.problems()
        return part
    name = where.rstrip(".")
    if name == "model.placement":
        return _read_placement(value, problems)
    if name == "model.options":
        if not isinstance(value, Mapping):
            problems.append(f"model.options must be an object of name: value; got {value!r}")
            return {}
        return dict(value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            problems.append(f"{name} must be one of {', '.join(get_args(kind))}; got {value!r}")
        return value
    optional = get_origin(kind) in (Union, types.UnionType)
    allowed = get_args(kind) if optional else (kind,)
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed:
        expected = " or ".join("null" if a is type(None) else a.__name__ for a in allowed)
        problems.append(f"{name} must be {expected}; got {value!r}")
    return value


def _read_placement(value: object, problems: list[str]) -> Placement:
    if not isinstance(value, Mapping):
        problems.append(f"model.placement must be an object of site: attention; got {value!r}")
        return {}
    placement = {}
    for site, spec in value.items():
        try:
            placement[site] = Spec.from_json(spec)
        except InputError as error:
            problems.append(f"model.placement at {site!r}: {error}")
    return placement
