"""The record of a trial, and its reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from search.config import Model, TrialConfig

TRIALS_FOLDER = "trials"  # the folder of the trials' folders, in the search's folder
SHARED_FOLDER = "shared_trainings"  # and of what trials share that go on from a plain training
CHECKPOINT_FILE = "checkpoint.pt"  # in a trial's folder
MAX_LISTED = 3  # modules in the short name of a placement

Metrics = dict[str, float]


class State(StrEnum):
    """How a trial stands. `pruned`: stopped at a rung by the scheduler. `infeasible`: cannot be trained."""

    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    ERROR = "error"


class Role(StrEnum):
    """Why a trial is tried.

    In a search: the plain backbone and its tuning, a paper's proposal, the sampler's choice, and what shows
    how far two trainings differ that are the same but for a perturbation of their weights. In a
    confirmation: the best of a search against that baseline, beside a 1x1 convolution, a random
    placement, the plain backbone with a finalist's hyperparameters, and the winner without one of its
    modules.
    """

    BASELINE = "baseline"
    PUBLISHED = "published"
    CANDIDATE = "candidate"
    REPLICATE = "replicate"
    FINALIST = "finalist"
    CONTROL = "control"
    RANDOM = "random"
    PLAIN = "plain"
    ABLATION = "ablation"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a trial reports after each epoch.

    It is cumulative, so that a lost report is made up for by the next one.

    history: one record of metrics an epoch, from the first on.
    profile: what was measured before training: parameters, MACs, memory, latency, time ratio.
    device: what it trains on, by name, reported with the profile.
    finished: the budget is used up.
    infeasible: why the configuration cannot be trained. violations: by how much, for each limit.
    error, traceback: of a crash.
    fault: what is wrong with the node it ran on, where it says nothing of the trial.
    """

    history: Sequence[Metrics] = ()
    profile: Mapping[str, float] = field(default_factory=dict)
    device: str = ""
    finished: bool = False
    infeasible: str | None = None
    violations: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    traceback: str | None = None
    fault: str | None = None

    @property
    def is_last(self) -> bool:
        """Nothing follows."""
        return self.finished or self.infeasible is not None or self.error is not None


@dataclass
class TrialRecord:
    """The record of one trial. Callbacks get copies that cannot be changed.

    Attributes:
        number: The number of the trial in its search, from 0 on.
        config: The configuration.
        role: Why the trial is tried, such as `baseline` or `candidate`.
        state: `running`, `complete`, `pruned`, `infeasible` or `error`.
        history: The metrics of each epoch.
        profile: The measurements before training: parameters, MACs, memory, latency, time ratio.
        reason: Why the trial is infeasible or failed.
        traceback: The traceback of an error in the code of the trial.
        variant: In a confirmation, the name of what the training repeats with another seed.
        device: The name of the device of the first training.
        expected: The primary metric by the model of placements, without the luck of the seed. None if there
            is no such model.

    Example:
        >>> import automl
        >>> trial = automl.TrialRecord(3, automl.TrialConfig(), history=[{"epoch": 1, "accuracy": 0.5}])
        >>> trial.name, trial.epoch, trial.value("accuracy")
        ('003 xresnet18 plain', 1, 0.5)
    """

    number: int
    config: TrialConfig
    role: Role = Role.CANDIDATE
    state: State = State.RUNNING
    history: list[Metrics] = field(default_factory=list)
    profile: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    traceback: str | None = None
    variant: str = ""
    device: str = ""
    expected: float | None = None

    @property
    def name(self) -> str:
        """Short and readable: its number, backbone with options and what sits where; or its variant and
        seed.
        """
        if self.variant:
            return f"{self.number:03d} {self.variant} seed {self.config.seed}"
        return f"{self.number:03d} {model_name(self.config)} {placement_name(self.config)}"

    @property
    def epoch(self) -> int:
        """The last one that has ended, 0 where none has."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def steps(self) -> int | None:
        """The training steps so far, with those of a shared partial training; None before the first epoch."""
        return int(self.history[-1]["steps"]) if self.history and "steps" in self.history[-1] else None

    @property
    def folder(self) -> str:
        """The folder of its checkpoint, below the search's."""
        return f"{TRIALS_FOLDER}/{self.number:04d}"

    def frozen(self) -> "TrialRecord":
        """Return a copy that cannot be changed, and that does not change with the trial."""
        copy = object.__new__(_FrozenRecord)
        copy.__dict__.update(
            vars(self),
            history=tuple(MappingProxyType(dict(metrics)) for metrics in self.history),
            profile=MappingProxyType(dict(self.profile)),
        )
        return copy

    def has(self, name: str) -> bool:
        """Return whether the last epoch or the profile has this value."""
        return bool(self.history and name in self.history[-1]) or name in self.profile

    def value(self, name: str) -> float:
        """Return a metric of the last epoch, or else a value of the profile."""
        return self.history[-1][name] if self.history and name in self.history[-1] else self.profile[name]


class _FrozenRecord(TrialRecord):
    """A record that refuses every change."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a callback cannot change the record of a trial; it sets {name!r}")


def placement_name(config: TrialConfig, *, options: bool = True) -> str:
    """Return the short name of a placement, for people, or `plain`.

    Sites of equal modules are listed together: `ssa @ stage2.block1, stage3.block2 + sagan @ stage1.block1`.
    Of more than three modules, the name has the first two: `ssa @ stage1.block1, stage2.block1 + 3 more`.

    Args:
        config: The configuration with the placement.
        options: Include the options of the modules: `decomposed(heads=8) @ stage1.block2`.
    """
    modules = list(config.model.placement.items())
    listed = modules if len(modules) <= MAX_LISTED else modules[: MAX_LISTED - 1]
    sites: dict[str, list[str]] = {}
    for site, spec in listed:
        sites.setdefault(str(spec) if options else spec.type, []).append(site)
    names = [f"{module} @ {', '.join(group)}" for module, group in sites.items()]
    if len(listed) < len(modules):
        names.append(f"{len(modules) - len(listed)} more")
    return " + ".join(names) or "plain"


def placement_names(configs: Sequence[TrialConfig]) -> list[str]:
    """Return short names of placements, with options only where two would have the same name without."""
    short = [placement_name(config, options=False) for config in configs]
    placements = {
        name: [config.model.placement for other, config in zip(short, configs, strict=True) if other == name]
        for name in short
    }
    return [
        placement_name(config, options=any(other != config.model.placement for other in placements[name]))
        for name, config in zip(short, configs, strict=True)
    ]


def placement_key(config: TrialConfig) -> str:
    """Return all modules of a placement, for programs: `decomposed(heads=8)@stage1.block2`, or `plain`."""
    return " + ".join(f"{spec}@{site}" for site, spec in config.model.placement.items()) or "plain"


def model_name(config: TrialConfig) -> str:
    """Return a backbone with its options: `xresnet18(width=0.25)`, or `xresnet18` without any."""
    options = listed_options(model_options(config))
    return f"{config.model.backbone}({options})" if options else config.model.backbone


def model_options(config: TrialConfig) -> dict[str, Any]:
    """Return the options of the backbone, and what the task's model has otherwise than by default."""
    model = config.model
    common = {field.name for field in fields(Model)}
    own = {f.name: getattr(model, f.name) for f in fields(model) if f.name not in common}
    defaults = {f.name: f.default for f in fields(model)}
    return {**{key: value for key, value in own.items() if value != defaults[key]}, **model.options}


def attention_options(config: TrialConfig) -> dict[str, Any]:
    """Return the options of the attentions: one value where all have it, else `8 + -` in the sites' order."""
    specs = list(config.model.placement.values())
    found = {}
    for key in dict.fromkeys(key for spec in specs for key in spec.options):
        values = [spec.options.get(key, "-") for spec in specs]
        same = all(value == values[0] for value in values)
        found[key] = values[0] if same else " + ".join(map(str, values))
    return found


def chosen_options(config: TrialConfig) -> dict[str, Any]:
    """Return all options of a model by name: `options.depth`, `attention.heads`."""
    return {
        **{f"options.{key}": value for key, value in model_options(config).items()},
        **{f"attention.{key}": value for key, value in attention_options(config).items()},
    }


def listed_options(options: Mapping[str, Any]) -> str:
    """Return options in short: `width=0.25, pool=gem`."""
    shown = {
        key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in options.items()
    }
    return ", ".join(f"{key}={value}" for key, value in shown.items())
