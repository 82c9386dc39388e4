"""The configuration of one trial, which round-trips through JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import backbones
from attention import InputError, unknown
from backbones import loading
from search.config.opened import OPEN, with_keys
from search.config.sections import Data, Model, Training
from search.config.tasks import UNLOADED, TaskSpec, canonical, load_spec, spec_of
from search.serialise import fields_to_json, from_json, join_problems

BASES = {"data": Data, "model": Model, "training": Training}


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialConfig:
    """The configuration of one training: model and placement, data, optimiser, schedule and seed.

    It is immutable and round-trips through JSON (`to_json`, `from_json`).

    Attributes:
        task: A name of `search.config.TASKS` or of a registered task, `file.py:Class` or
            `package.module:Class`. It decides the types of `data`, `model` and `training`,
            and their defaults. `load` loads the code of a user-defined task.
        data: The dataset, such as a `search.config.ImageData`.
        model: The backbone, its options and the placement: a `search.config.Model`.
        training: Epochs, optimiser and augmentation, such as a `search.config.ImageTraining`.
        metric: The metric by which trials are compared. By default the task's first one.
        seed: Decides initial weights, data order and augmentation.

    Raises:
        InputError: A value cannot work. The message names every problem.

    Example:
        >>> import automl
        >>> placement = {"stage4.block2": automl.Spec("ssa")}
        >>> config = automl.TrialConfig(seed=1).change(model={"placement": placement})
        >>> config.model.backbone, config.seed, list(config.model.placement)
        ('xresnet18', 1, ['stage4.block2'])
        >>> automl.TrialConfig.from_json(config.to_json()) == config
        True
    """

    task: str = "image-classification"
    data: Data = None  # type: ignore[assignment]
    model: Model = None  # type: ignore[assignment]
    training: Training = None  # type: ignore[assignment]
    metric: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", canonical(self.task))
        whole = None not in (self.data, self.model, self.training)
        try:
            # The defaults of a user-defined task are in its code; what is read from JSON is always whole.
            spec, problems = (spec_of if whole else load_spec)(self.task), []
        except InputError as error:
            raise InputError(join_problems("configuration", [str(error)])) from None
        for name, kind in self._types(spec).items():
            value = getattr(self, name)
            if isinstance(value, OPEN) and not issubclass(kind, OPEN):  # the code has been loaded since
                value = from_json(kind, fields_to_json(value), f"{name} of task {self.task}")
                object.__setattr__(self, name, value)
            if value is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(value, BASES[name] if issubclass(kind, OPEN) else kind):
                problems.append(f"{name} of task {self.task} must be a {kind.__name__}; got {value!r}")
        if not problems:
            problems += [p for part in (self.data, self.model, self.training) for p in part.problems()]
        if isinstance(self.model, Model) and not self.user_code():
            problems += self._misfits(spec)
        names = [metric.name for metric in spec.metrics]
        if self.metric and self.metric not in names and spec is not UNLOADED:
            problems.append(str(unknown("metric", self.metric, names)))
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if problems:
            raise InputError(join_problems("configuration", problems))

    def _misfits(self, spec: TaskSpec) -> list[str]:
        """Return what is wrong with the backbone for inputs of the task, as a list of at most one problem."""
        takes = self.model.dimensions() if spec.dimensions is not None else None
        if takes in (None, spec.dimensions):
            return []
        fit = [name for name, other in backbones.BACKBONES.items() if other.dimensions == spec.dimensions]
        return [
            f"backbone {self.model.backbone} takes inputs with {takes} spatial dimensions, "
            f"and those of task {self.task} have {spec.dimensions}; choose from {', '.join(fit)}"
        ]

    def __eq__(self, other: object) -> bool:
        """Compare as JSON: the types of a user-defined task are others before and after it is loaded."""
        return self.to_json() == other.to_json() if isinstance(other, TrialConfig) else NotImplemented

    @classmethod
    def json_types(cls, value: Mapping[str, Any]) -> dict[str, type]:
        """The types that the task decides on. Raises InputError when there is no such task."""
        task = value.get("task", cls.task)
        types = cls._types(spec_of(canonical(task) if isinstance(task, str) else cls.task))
        return {
            name: with_keys(kind, value.get(name)) if issubclass(kind, OPEN) else kind
            for name, kind in types.items()
        }

    @staticmethod
    def _types(spec: TaskSpec) -> dict[str, type]:
        return {"data": spec.data, "model": spec.model, "training": spec.training}

    def user_code(self) -> list[str]:
        """Return the names of the user-defined code that training it runs: its task and its backbone."""
        return [name for name in (self.task, self.model.backbone) if loading.is_user_defined(name)]

    def load(self) -> "TrialConfig":
        """Load the user-defined code that it names, and return it as that code understands it.

        Nothing else of a configuration runs code of others: not reading it, nor comparing or changing it.
        Raises InputError where the code cannot be loaded, or does not take its values.
        """
        if not self.user_code():
            return self
        spec = load_spec(self.task)
        config = replace(
            self, model=self.model.identified()
        )  # its parts are of the task's types from here on
        problems = config._misfits(spec)
        if loading.is_user_defined(config.model.backbone):
            problems += config.model.misuses()
        if problems:
            raise InputError(join_problems("configuration", problems))
        return config

    def code(self) -> loading.Code:
        """The files of what is user-defined in it, for machines that do not have them."""
        return {**loading.code(self.task), **loading.code(self.model.backbone)}

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return fields_to_json(self)

    @classmethod
    def from_json(cls, value: object) -> "TrialConfig":
        """The inverse of `to_json`; what is left out takes its default. Runs no code that it names."""
        if isinstance(value, Mapping):
            value = {"data": {}, "training": {}, **value}
            if isinstance(model := value.get("model", {}), Mapping):
                code = model.get("code")
                value["model"] = {**model, "code": "" if code is None else code}
        return from_json(cls, value, "configuration")

    def __reduce__(self) -> Any:
        """Pickled as JSON: the types of a user-defined task are in a file, not in a module."""
        return TrialConfig.from_json, (self.to_json(),)

    def change(self, **parts: Mapping[str, Any] | Any) -> "TrialConfig":
        """A copy with some values changed: `config.change(data={"size": 64}, seed=1)`."""
        new = {}
        for name, value in parts.items():
            part = getattr(self, name)
            if not isinstance(value, Mapping):
                new[name] = value
                continue
            if "backbone" in value and isinstance(part, Model):
                value = {"code": None, **value}
            known = [f.name for f in fields(part)]
            for key in value:
                if key not in known:
                    raise unknown(f"key of the {name} of task {self.task}", key, known)
            new[name] = replace(part, **value)
        return replace(self, **new)
