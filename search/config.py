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
from backbones import BACKBONES, Placement

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["one-cycle", "flat-cosine"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """What is learned from.

    source: a name of `automl.data`'s table, `folder` for images of one's own.
    path: a folder or archive that is read instead of downloading the source.
    size: side of the square images in pixels.
    subset: stratified fraction of the training and validation images that is used.
    """

    source: str = "digits"
    path: str | None = None
    size: int = 32
    subset: float = 1.0

    def problems(self) -> Iterator[str]:
        # Backbones halve five times; with less than one position left to halve, oneDNN's bfloat16
        # gradients of a strided convolution are not even initialised (torch 2.15).
        if not 24 <= self.size <= 1024:
            yield f"data.size must lie between 24 and 1024 pixels; got {self.size}"
        if not 0 < self.subset <= 1:
            yield f"data.subset must be above 0 and at most 1; got {self.subset}"


@dataclass(frozen=True, kw_only=True)
class Model:
    """A backbone of the table, its width, and the attention at each site."""

    backbone: str = "xresnet18"
    width: float = 1.0
    placement: Placement = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        if self.backbone not in BACKBONES:
            yield str(unknown("backbone", self.backbone, BACKBONES))
        if not 1 / 16 <= self.width <= 16:
            yield f"model.width must lie between 1/16 and 16; got {self.width}"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is learned. The defaults are the published ones of SimpleSelfAttention.

    mixup: alpha of the beta distribution that mixing weights are drawn from; 0 is off.
    """

    epochs: int = 5
    batch_size: int = 64
    optimizer: Optimizer = "adamw"
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    schedule: Schedule = "one-cycle"
    mixup: float = 0.0
    label_smoothing: float = 0.1

    def problems(self) -> Iterator[str]:
        if self.epochs < 1:
            yield f"training.epochs must be 1 or more; got {self.epochs}"
        if self.batch_size < 2:
            yield f"training.batch_size must be 2 or more, for batch norm; got {self.batch_size}"
        if not (isfinite(self.learning_rate) and self.learning_rate > 0):
            yield f"training.learning_rate must be above 0; got {self.learning_rate}"
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            yield f"training.weight_decay must be 0 or more; got {self.weight_decay}"
        if not (isfinite(self.mixup) and self.mixup >= 0):
            yield f"training.mixup must be 0 or more; got {self.mixup}"
        if not 0 <= self.label_smoothing < 1:
            yield f"training.label_smoothing must be at least 0 and below 1; got {self.label_smoothing}"


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """One trial. Raises InputError, naming every problem, when a value cannot work.

    seed: decides initial weights, data order and augmentation.
    """

    task: str = "classification"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        problems = [p for part in (self.data, self.model, self.training) for p in part.problems()]
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
        new = {
            name: replace(getattr(self, name), **value) if isinstance(value, Mapping) else value
            for name, value in parts.items()
        }
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
