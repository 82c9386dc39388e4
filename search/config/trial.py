"""The configuration of one trial, which round-trips through JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import backbones
from attention import InputError, unknown
from backbones import loading
from search.config.parts import Data, Model, Training
from search.config.tasks import TaskConfigs, configs_of
from search.serialise import fields_to_json, from_json, together


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """One trial. Raises InputError, naming every problem, when a value cannot work.

    task: `image-classification`, `sequence-classification`, `code-retrieval`, `stereo`, `detection`,
        `file.py:Class` or `package.module:Class`. It decides which types `data`, `model` and `training` are
        of, whose defaults stand where they are not given.
    metric: by which trials are compared, one of the task's; its default where not given.
    seed: decides initial weights, data order and augmentation.
    """

    task: str = "image-classification"
    data: Data = None  # type: ignore[assignment]
    model: Model = None  # type: ignore[assignment]
    training: Training = None  # type: ignore[assignment]
    metric: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", loading.absolute(self.task))
        try:
            configs, problems = configs_of(self.task), []
        except InputError as error:
            raise InputError(together("configuration", [str(error)])) from None
        for name, kind in self._types(configs).items():
            value = getattr(self, name)
            if value is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(value, kind):
                problems.append(f"{name} of task {self.task} must be a {kind.__name__}; got {value!r}")
        if not problems:
            problems += [p for part in (self.data, self.model, self.training) for p in part.problems()]
            problems += self.model.refused(self.metric)
        takes = self.model.dimensions() if configs.dimensions is not None else None
        if takes not in (None, configs.dimensions):
            fit = [
                name for name, other in backbones.BACKBONES.items() if other.dimensions == configs.dimensions
            ]
            problems.append(
                f"backbone {self.model.backbone} takes inputs with {takes} spatial dimensions, "
                f"and those of task {self.task} have {configs.dimensions}; choose from {', '.join(fit)}"
            )
        names = [metric.name for metric in configs.metrics]
        if self.metric and self.metric not in names:
            one = f"task {self.task} has one metric alone, and takes none; got {self.metric!r}"
            problems.append(str(unknown("metric", self.metric, names)) if names else one)
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if problems:
            raise InputError(together("configuration", problems))

    @classmethod
    def json_types(cls, value: Mapping[str, Any]) -> dict[str, type]:
        """The types that the task decides on. Raises InputError when there is no such task."""
        task = value.get("task", cls.task)
        configs = configs_of(task if isinstance(task, str) else cls.task)
        return cls._types(configs)

    @staticmethod
    def _types(configs: TaskConfigs) -> dict[str, type]:
        return {"data": configs.data, "model": configs.model, "training": configs.training}

    def code(self) -> loading.Code:
        """The files of what is user-defined in it, for machines that do not have them."""
        return {**loading.code(self.task), **loading.code(self.model.backbone)}

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers."""
        return fields_to_json(self)

    @classmethod
    def from_json(cls, value: object) -> "TrialConfig":
        """The inverse of `to_json`; what is left out takes its default."""
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
                value = {"code": "", **value}
            known = [f.name for f in fields(part)]
            for key in value:
                if key not in known:
                    raise unknown(f"key of the {name} of task {self.task}", key, known)
            new[name] = replace(part, **value)
        return replace(self, **new)
