"""The record of a trial, its reports, and callbacks on the events of a search and its trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from automl.base import loading
from search.config import Model, TrialConfig

TRIALS_FOLDER = "trials"  # in the search's folder
CHECKPOINT_FILE = "checkpoint.pt"  # in a trial's folder
PLAIN, MIXED = "plain", "mixed"  # kinds of a trial that are no attention's name
NOT_STARTED = "cannot start"  # begins the reason of a command's failure if it did not run at all
NOT_NEEDED = "not needed"  # in words: a training of a comparison that its verdict did without

Metrics = dict[str, float]


class State(StrEnum):
    """State of a trial.

    `pruned`: stopped at a rung by the scheduler. `infeasible`: cannot be trained, or exceeds a limit.
    """

    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    INFEASIBLE = "infeasible"
    ERROR = "error"


class Role(StrEnum):
    """Reason why a trial is run.

    In a search: the baseline and trials that tune it, free answers (placements of papers and of rules of
    thumb, which cost no training to choose), the sampler's candidates, and in MLflow the original, a trained
    model that it starts from. In a confirmation: the finalists,
    the baseline, the best free answer, and the controls: a 1x1 convolution, random placements, the plain
    backbone with a finalist's hyperparameters, what a finalist has to beat trained longer, and the winner
    without one of its modules.
    """

    BASELINE = "baseline"
    FREE = "free"
    CANDIDATE = "candidate"
    ORIGINAL = "original"
    FINALIST = "finalist"
    CONTROL = "control"
    RANDOM = "random"
    PLAIN = "plain"
    LONGER = "longer"
    ABLATION = "ablation"

    @classmethod
    def _missing_(cls, value: object) -> "Role | None":
        return cls.FREE if value == "published" else None  # in searches before free answers had their name


@dataclass(frozen=True, kw_only=True)
class Report:
    """Report of a trial after a validation.

    It is cumulative, so the next report makes up for a lost one.

    Attributes:
        history: The metrics of each validation, from the first on.
        profile: Measurements before training: parameters, MACs, memory, latency, time ratio.
        device: The name of the device, reported with the profile.
        finished: True if the budget is used up.
        infeasible: The reason why the configuration cannot be trained.
        violations: The excess over each limit.
        error: The error that ended the trial.
        traceback: The traceback of that error.
        fault: A fault of the node that is unrelated to the trial.
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
        """Return True if no further report follows."""
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
        params: The parameters that the sampler chose in the space.
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
    params: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    traceback: str | None = None
    variant: str = ""
    device: str = ""
    expected: float | None = None

    @property
    def name(self) -> str:
        """Return the number with the model and the placement, or with the variant and the seed."""
        if self.variant:
            return f"{self.number:03d} {self.variant} seed {self.config.seed}"
        return f"{self.number:03d} {model_name(self.config)} {self.config.model.placement_name()}"

    @property
    def epoch(self) -> int:
        """Return the last finished epoch, or 0."""
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def steps(self) -> int | None:
        """Return the training steps so far. None before the first epoch."""
        return int(self.history[-1]["steps"]) if self.history and "steps" in self.history[-1] else None

    @property
    def resource(self) -> float:
        """Return the resource of the last epoch, in epochs of the baseline's time."""
        return self.history[-1]["resource"] if self.history else 0.0

    @property
    def types(self) -> list[str]:
        """Return the types of its attention modules without repetition, or `plain`."""
        return sorted({spec.name for spec in self.config.model.placement.values()}) or [PLAIN]

    @property
    def kind(self) -> str:
        """Return the type of its attention, `plain` or `mixed`."""
        return self.types[0] if len(self.types) == 1 else MIXED

    @property
    def condition(self) -> str:
        """Return the state in words."""
        return NOT_NEEDED if self.variant and self.state is State.PRUNED else str(self.state)

    @property
    def folder(self) -> str:
        """Return the folder of the checkpoint, relative to the folder of the search."""
        return f"{TRIALS_FOLDER}/{self.number:04d}"

    def frozen(self) -> "TrialRecord":
        """Return a read-only copy that does not change with the trial."""
        copy = object.__new__(_FrozenRecord)
        copy.__dict__.update(
            vars(self),
            history=tuple(MappingProxyType(dict(metrics)) for metrics in self.history),
            profile=MappingProxyType(dict(self.profile)),
            params=MappingProxyType(dict(self.params)),
        )
        return copy

    def has(self, name: str) -> bool:
        """Return True if the last epoch or the profile has a value of this name."""
        return bool(self.history and name in self.history[-1]) or name in self.profile

    def value(self, name: str) -> float:
        """Return a metric of the last epoch, or else a value of the profile."""
        return self.history[-1][name] if self.history and name in self.history[-1] else self.profile[name]


class _FrozenRecord(TrialRecord):
    """A read-only record."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a callback cannot change the record of a trial; it sets {name!r}")


def describe_placement(config: TrialConfig) -> str:
    """Return the name of a placement with its options, or `no attention`."""
    name = config.model.placement_name()
    return "no attention" if name == PLAIN else name


def placement_names(configs: Sequence[TrialConfig]) -> list[str]:
    """Return short names of placements, with options only where two would have the same name without."""
    short = [config.model.placement_name(options=False) for config in configs]
    placements = {
        name: [config.model.placement for other, config in zip(short, configs, strict=True) if other == name]
        for name in short
    }
    models = [config.model for config in configs]
    return [
        model.placement_name(options=any(other != model.placement for other in placements[name]))
        for name, model in zip(short, models, strict=True)
    ]


def placement_key(config: TrialConfig) -> str:
    """Return all modules of a placement, for programs: `decomposed(heads=8)@stage1.block2`, or `plain`."""
    return " + ".join(f"{spec}@{site}" for site, spec in config.model.placement.items()) or PLAIN


def model_name(config: TrialConfig) -> str:
    """Return the backbone with its options, such as `xresnet18(width=0.25)`."""
    options = format_options(model_options(config))
    name = loading.short_name(config.model.backbone)
    return f"{name}({options})" if options else name


def model_options(config: TrialConfig) -> dict[str, Any]:
    """Return the options of the backbone and the model fields that differ from their defaults."""
    model = config.model
    common = {field.name for field in fields(Model)}
    own = {f.name: getattr(model, f.name) for f in fields(model) if getattr(model, f.name) != f.default}
    return {**{key: value for key, value in own.items() if key not in common}, **model.options}


def attention_options(config: TrialConfig) -> dict[str, Any]:
    """Return the options of the modules: a common value, or one per site, such as `8 + -`."""
    specs = list(config.model.placement.values())
    options = {}
    for key in dict.fromkeys(key for spec in specs for key in spec.options):
        values = [spec.options.get(key, "-") for spec in specs]
        is_common = all(value == values[0] for value in values)
        options[key] = values[0] if is_common else " + ".join(map(str, values))
    return options


def chosen_options(config: TrialConfig) -> dict[str, Any]:
    """Return all options of a model by name, such as `options.depth` and `attention.heads`."""
    return {
        **{f"options.{key}": value for key, value in model_options(config).items()},
        **{f"attention.{key}": value for key, value in attention_options(config).items()},
    }


def format_options(options: Mapping[str, Any]) -> str:
    """Format options, such as `width=0.25, pool=gem`."""
    return ", ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in options.items()
    )


@dataclass(frozen=True, kw_only=True)
class SearchRecord:
    """Settings of a search or confirmation that starts or resumes, as passed to callbacks.

    Attributes:
        name: The name of the search.
        folder: The folder of the search or the confirmation on this machine, for files of the callback.
        storage: The folder or object store that the search is in.
        metric: The name of the primary metric.
        maximize: True if a higher metric is better.
        trials: The planned number of trials, or None if only a time limit is set.
        settings: The settings of the search, as in `search.json`.

    Example:
        >>> import automl
        >>> class Announce(automl.Callback):
        ...     def on_search_start(self, search):
        ...         print(f"{search.name} compares by {search.metric}")
    """

    name: str
    folder: Path
    storage: str
    metric: str
    maximize: bool
    trials: int | None
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class Callback:
    """Base class of reactions to the events of a search or a confirmation.

    Subclass it, override the methods you need, and pass an instance to `run_search(callbacks=[...])` or
    `run_confirm(callbacks=[...])`, or name the class on the command line: `--callback file.py:Name`. Methods
    run in the process that drives the search, one after the other, so a slow one delays the next trial. A
    callback cannot change a record. An error in a callback is logged once, and the search continues.

    Example:
        >>> import automl
        >>> class PrintScores(automl.Callback):
        ...     def on_trial_end(self, trial):
        ...         print(trial.number, trial.state, trial.history[-1]["accuracy"])
        >>> trial = automl.TrialRecord(3, automl.TrialConfig(), history=[{"accuracy": 0.5}])
        >>> PrintScores().on_trial_end(trial)
        3 running 0.5
    """

    def on_search_start(self, search: SearchRecord) -> None:
        """React to a search that starts or resumes.

        Args:
            search: The search.
        """

    def on_trial_start(self, trial: TrialRecord) -> None:
        """React to a trial that starts, or restarts after its process died.

        Args:
            trial: The trial. In a confirmation, `trial.variant` is what the training repeats.
        """

    def on_epoch_end(self, trial: TrialRecord) -> None:
        """React to a validation, at the end of an epoch or within it.

        Args:
            trial: The trial. `trial.history[-1]` holds the metrics. Its `epoch` may be a fraction.
        """

    def on_trial_end(self, trial: TrialRecord) -> None:
        """React to a trial that has ended and is recorded in the study.

        Args:
            trial: The trial. `trial.state` is final.
        """

    def on_search_end(self, result: Any) -> None:
        """React to the end of a search, also of one that was interrupted.

        Args:
            result: The `Search`.
        """

    def on_confirmation_start(self, search: SearchRecord) -> None:
        """React to a confirmation that starts or resumes.

        Args:
            search: The search that is confirmed, with the folder of the confirmation.
        """

    def on_confirmation_end(self, result: Any) -> None:
        """React to the end of a confirmation.

        Args:
            result: The `ConfirmResult`.
        """
