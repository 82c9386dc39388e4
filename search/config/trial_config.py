"""Configuration of one trial, which round-trips through JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import backbones
from automl.base import loading
from automl.base.errors import InputError, unknown
from automl.base.serialise import WITHOUT_TORCH, convert_fields, from_json, join_problems
from search.config.sections import Data, Model, Training
from search.config.tasks import OPEN, UNLOADED, TaskSpec, find_spec, load_spec, resolve_name, with_keys

BASES = {"data": Data, "model": Model, "training": Training}


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialConfig:
    """Configuration of one training: model and placement, data, optimiser, schedule and seed.

    It is immutable and round-trips through JSON (`to_json`, `from_json`).

    Attributes:
        task: A name of `search.config.TASKS` or of a registered task, `file.py:Class` or
            `package.module:Class`. It determines the types of `data`, `model` and `training`, and their
            defaults. `load` loads the code of a user-defined task.
        data: The dataset, such as a `search.config.ImageData`.
        model: The backbone, its options and the placement: a `search.config.Model`.
        training: Epochs, optimiser and augmentation, such as a `search.config.ImageTraining`.
        metric: The metric by which trials are compared. By default the task's first one.
        seed: Fixes initial weights, data order and augmentation.
        longer: How many times as many steps as usual it trains: above 1 for a finalist's opponent.

    Raises:
        InputError: A value is invalid. The message names every problem.

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
    longer: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", resolve_name(self.task))
        is_complete = None not in (self.data, self.model, self.training)
        try:
            # The defaults of a user-defined task are in its code. Configurations from JSON are always
            # complete.
            spec, problems = (find_spec if is_complete else load_spec)(self.task), []
        except InputError as error:
            raise InputError(join_problems("configuration", [str(error)])) from None
        for name, base in BASES.items():
            kind, value = getattr(spec, name), getattr(self, name)
            if isinstance(value, OPEN) and not issubclass(kind, OPEN):  # its code was loaded in the meantime
                value = from_json(kind, convert_fields(value), f"{name} of task {self.task}")
                object.__setattr__(self, name, value)
            if value is None:
                object.__setattr__(self, name, kind())
            elif not isinstance(value, base if issubclass(kind, OPEN) else kind):
                problems.append(f"{name} of task {self.task} must be a {kind.__name__}; got {value!r}")
        if not problems:
            misfits = [] if ":" in self.model.backbone else self._misfits(spec)
            problems += [*self.data.problems(), *(misfits or self.model.problems())]
            problems += self.training.problems()
        names = [metric.name for metric in spec.metrics]
        if isinstance(self.training, Training) and self.training.reported is not None:
            names = [self.training.reported.name]
        if self.metric and self.metric not in names and spec is not UNLOADED:
            problems.append(str(unknown("metric", self.metric, names)))
        if not 0 <= self.seed < 2**32:
            problems.append(f"seed must lie between 0 and 2^32 - 1; got {self.seed}")
        if not 1 <= self.longer < inf:
            problems.append(f"longer must be 1 or more; got {self.longer}")
        if problems:
            raise InputError(join_problems("configuration", problems))

    def _misfits(self, spec: TaskSpec) -> list[str]:
        """Return a list of at most one problem: the backbone is unknown or for other inputs."""
        if spec.dimensions is None or WITHOUT_TORCH.get() or self.model.changed():
            return []
        try:
            dimensions = backbones.find(self.model.backbone, spec.dimensions).dimensions
        except InputError as error:
            return [str(error)]
        if dimensions == spec.dimensions:
            return []
        fitting = [name for name, other in backbones.BACKBONES.items() if other.dimensions == spec.dimensions]
        return [
            f"backbone {self.model.backbone} takes inputs with {dimensions} spatial dimensions, "
            f"and those of task {self.task} have {spec.dimensions}; choose from {', '.join(fitting)}"
        ]

    def __eq__(self, other: object) -> bool:
        """Compare as JSON, since loading the code of a user-defined task changes the types."""
        return self.to_json() == other.to_json() if isinstance(other, TrialConfig) else NotImplemented

    @classmethod
    def json_types(cls, value: Mapping[str, Any]) -> dict[str, type]:
        """Return the types of the sections, which depend on the task. Raises InputError if it is unknown."""
        task = value.get("task", cls.task)
        spec = find_spec(resolve_name(task) if isinstance(task, str) else cls.task)
        types = {name: getattr(spec, name) for name in BASES}
        return {
            name: with_keys(kind, value.get(name)) if issubclass(kind, OPEN) else kind
            for name, kind in types.items()
        }

    def user_code(self) -> list[str]:
        """Return the names of the user-defined code that a training runs: its task, backbone and attention.

        Returns:
            The names, each once.
        """
        types = (spec.type for spec in self.model.placement.values())
        names = dict.fromkeys((self.task, self.model.backbone, *types))
        return [name for name in names if loading.is_user_defined(name)]

    def load(self) -> "TrialConfig":
        """Load the user-defined code and the model's library, and check the model with them.

        No other method runs user-defined code, or reads a model from a folder, a library or the network.

        Returns:
            The configuration with the code's types.

        Raises:
            InputError: The code or the model cannot be loaded, or it rejects the values.
        """
        names = (self.task, self.model.backbone, *(spec.type for spec in self.model.placement.values()))
        if not any(":" in name for name in names):
            return self
        spec = load_spec(self.task)
        config = replace(self, model=self.model.identified())  # whose sections have the task's types
        problems: list[str] = []
        if ":" in self.model.backbone:
            problems += config._misfits(spec) or config.model.misuses()
        if problems:
            raise InputError(join_problems("configuration", problems))
        return config

    def code(self) -> loading.Code:
        """Return the files of user-defined code, for machines that lack them."""
        files: dict[str, bytes] = {}
        for name in self.user_code():
            files |= loading.code(name)
        return files

    def cache_bytes(self) -> int:
        """Return the bytes of keys, values and states of a decoder at its context, or 0 for another task.

        Raises:
            InputError: A type of the placement cannot decode.
        """
        return self.model.cache_bytes(self.data.decoding_context)

    def to_json(self) -> dict[str, Any]:
        """Convert to dictionaries, lists, strings and numbers.

        Returns:
            The dictionary, which `from_json` reads.
        """
        value = convert_fields(self)
        return value if self.longer != 1 else {key: value[key] for key in value if key != "longer"}

    @classmethod
    def from_json(cls, value: object) -> "TrialConfig":
        """Convert from JSON. Missing keys get their defaults.

        No user-defined code runs, and the model need not be available here. `load` checks that.

        Args:
            value: The dictionary that `to_json` returned.

        Returns:
            The configuration.

        Raises:
            InputError: A value is invalid. The message names every problem.
        """
        if isinstance(value, Mapping):
            value = {"data": {}, "training": {}, **value}
            if isinstance(model := value.get("model", {}), Mapping):
                code = model.get("code")
                value["model"] = {**model, "code": "" if code is None else code}
        return from_json(cls, value, "configuration")

    def __reduce__(self) -> Any:
        """Pickle as JSON, since the types of a user-defined task are in a file, not in a module."""
        return TrialConfig.from_json, (self.to_json(),)

    def change(self, **sections: Mapping[str, Any] | Any) -> "TrialConfig":
        """Return a copy with some values changed.

        Args:
            sections: New values of fields, or dictionaries with new values of a section, as in
                `config.change(data={"size": 64}, seed=1)`.

        Returns:
            The changed configuration.

        Raises:
            InputError: A key is unknown, or a value is invalid.
        """
        changes = {}
        for name, value in sections.items():
            section = getattr(self, name)
            if not isinstance(value, Mapping):
                changes[name] = value
                continue
            if "backbone" in value and isinstance(section, Model):
                value = {"code": None, **value}
            known = [f.name for f in fields(section)]
            for key in value:
                if key not in known:
                    raise unknown(f"key of the {name} of task {self.task}", key, known)
            changes[name] = replace(section, **value)
        return replace(self, **changes)
