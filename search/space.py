"""Search spaces: pure functions from an Optuna trial to a TrialConfig, with their settings, and by name."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from automl.base import loading
from automl.base.errors import InputError, describe_error
from automl.base.lazy import LazyTable, contributed, isolated, later
from automl.base.loading import load_object
from search.choices import types_of
from search.config import TrialConfig
from search.config.tasks import TASKS, TaskSpec, registered_specs

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler
    from optuna.study import StudyDirection

    SpaceFunction = Callable[[optuna.Trial], TrialConfig]
else:
    optuna = later("optuna")  # `automl status` does not need it
    SpaceFunction = Callable[..., TrialConfig]


GRID = "grid"  # the name of a sampler, which `search.fixed_scheduler` replaces
KINDS = "kinds"  # parameter of a space function that gets the attention types

# Attributes of a space function that provenance records, since their values can be written as text.
ATTRIBUTES = ("baseline", "free", "plain")


def without_attention(config: TrialConfig) -> TrialConfig:
    """Return the configuration without attention and otherwise unchanged."""
    return config.change(model={"placement": {}})


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space: a function that draws a configuration, and what goes with it.

    A plain function of an Optuna trial works as a space, too. A `Space` adds the configurations to begin
    with.

    Attributes:
        name: The name of the space.
        draw: Draws a configuration with the trial's `suggest_` methods, and does nothing else. With a
            parameter `kinds`, whose default are attention types, the user may choose others.
        baseline: The parameters of trial 0: the plain backbone with published defaults. Parameters that are
            not named are drawn.
        summary: One line for `automl spaces`.
        free: Returns the parameters of the next trials, the free answers: placements of papers and of rules
            of thumb, which cost no training to choose.
        plain: Parameters that make a trial plain, for trials that tune the baseline.
        candidate: Parameters of the trials that the sampler draws, and of the cells of a grid. By default all
            are drawn.
        as_baseline: Returns the configuration with the model of the baseline and its own hyperparameters. A
            configuration that it leaves unchanged is a baseline.
        with_backbone: Returns the space of another backbone, given its name, the image side in pixels, or
            None for the side of the space, and its options. None if the space has backbones of its own.
        fine_tuned: Returns the space of models that start from trained weights. None if it is the same.
        controls: Returns the controls of a finalist's configuration by name. By default the control has 1x1
            convolutions instead of the finalist's attentions.
        with_layers: Returns the space with another number of full layers `full`, or other attention types
            `kinds`. None if its models are no hybrid decoders.
        adjust: Applied to each configuration that `draw` returns, for the settings of a search.

    Raises:
        InputError: `draw` raises an error, or does not return a `TrialConfig`.

    Example:
        >>> import automl, optuna
        >>> def draw(trial):
        ...     rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        ...     return automl.TrialConfig().change(training={"learning_rate": rate})
        >>> baseline = {"learning_rate": 0.001}
        >>> space = automl.Space(name="rates", draw=draw, baseline=baseline, summary="One learning rate.")
        >>> space(optuna.trial.FixedTrial({"learning_rate": 0.005})).training.learning_rate
        0.005
    """

    name: str
    draw: SpaceFunction
    baseline: Mapping[str, Any]
    summary: str
    free: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    plain: Mapping[str, Any] = field(default_factory=lambda: {"modules": 0})
    candidate: Mapping[str, Any] = field(default_factory=dict)
    as_baseline: Callable[[TrialConfig], TrialConfig] = without_attention
    with_backbone: Callable[[str, int | None, Mapping[str, Any]], "Space"] | None = None
    fine_tuned: "Callable[[], Space] | None" = None
    controls: Callable[[TrialConfig], Mapping[str, TrialConfig]] | None = None
    with_layers: Callable[..., "Space"] | None = None
    adjust: Callable[[TrialConfig], TrialConfig] = lambda config: config

    @property
    def types(self) -> Sequence[str] | None:
        """Return the attention types that `draw` chooses from, the default of its parameter `kinds`.

        None if it has no such parameter.
        """
        parameter = inspect.signature(self.draw).parameters.get(KINDS)
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def with_attention(self, types: Sequence[str]) -> "Space":
        """Return the space that draws these attention types, and tries free answers of them.

        Args:
            types: Names of attention types, without duplicates.

        Raises:
            InputError: The space determines its attention itself.
        """
        if self.types is None:
            raise InputError(
                f"space {self.name!r} determines its attention itself and takes no --attention. In your own "
                f"function, add the parameter `kinds` with the default types, and give it to "
                f"`search.choices.placement`"
            )
        if self.with_layers is not None:
            return replace(self.with_layers(kinds=tuple(types)), controls=self.controls)
        names = {loading.short_name(name) for name in types}
        draw: Callable[..., TrialConfig] = self.draw
        return replace(
            self,
            draw=partial(draw, kinds=tuple(types)),
            free=lambda: [params for params in self.free() if types_of(params) <= names],
        )

    def with_full(self, full: int) -> "Space":
        """Return the space of hybrid decoders with so many full layers.

        Args:
            full: The number of full layers.

        Raises:
            InputError: The models of the space are no hybrid decoders, or have fewer layers.
        """
        if self.with_layers is None:
            raise InputError(f"--full is for hybrid decoders; leave it out with --space {self.name}")
        return replace(self.with_layers(full=full), controls=self.controls)

    def __call__(self, trial: "optuna.Trial") -> TrialConfig:
        """Draw a configuration. Errors of a user-defined function become an InputError."""
        try:
            config: object = self.draw(trial)
        except (optuna.TrialPruned, InputError):
            raise
        except Exception as error:
            raise InputError(f"space {self.name!r} raised {describe_error(error)}") from error
        if not isinstance(config, TrialConfig):
            raise InputError(
                f"space {self.name!r} must return a search.config.TrialConfig; got {type(config).__name__}"
            )
        return self.adjust(config.load())


def memory_study(sampler: "BaseSampler", direction: "StudyDirection | None" = None) -> "optuna.Study":
    """Create an empty study in memory, by default to minimise, without a log message."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(direction=direction, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def draw_randomly(
    space: Space, count: int, *, seed: int = 0, first: Mapping[str, Any] | None = None
) -> Iterator[tuple["optuna.Trial", TrialConfig | None]]:
    """Yield random trials, with parameters `first` at first, and their configurations, None if rejected."""
    study = memory_study(optuna.samplers.RandomSampler(seed))
    if first is not None:
        study.enqueue_trial(dict(first))
    for _ in range(count):
        trial = study.ask()
        try:
            yield trial, space(trial)
        except optuna.TrialPruned:
            yield trial, None


def space_name(space: "str | SpaceFunction | Space") -> str:
    """Return the name of a space, or `module:function` for a function."""
    if isinstance(space, str):
        return space
    if isinstance(space, Space):
        return space.name
    function = inspect.unwrap(space)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(space).__name__)}"


def get_source(space: Space) -> str:
    """Return the source code of the space function alone, with its attributes, or an empty string."""
    draw = space.draw.func if isinstance(space.draw, partial) else space.draw
    try:
        lines = [inspect.cleandoc("\n" + inspect.getsource(draw))]
    except (OSError, TypeError):
        return ""
    name = getattr(draw, "__name__", "draw")
    lines += [f"{name}.{key} = {getattr(draw, key)!r}" for key in ATTRIBUTES if hasattr(draw, key)]
    return "\n".join(lines) + "\n"


def _spaces_of(tasks: Iterable[tuple[str, TaskSpec]]) -> Mapping[str, Space]:
    spaces: dict[str, Space] = {}
    for name, spec in tasks:
        with isolated(name):
            modules = [import_module(module) for module in spec.spaces]
            spaces |= {space.name: space for module in modules for space in module.SPACES}
    return spaces


def task_of_space(name: str) -> TaskSpec | None:
    """Return the declaration of the task that a space belongs to, or None for one of the user."""
    return next((spec for task, spec in TASKS.items() if name in _spaces_of([(task, spec)])), None)


# The spaces of all tasks, built in or installed. The tasks are imported on first use.
SPACES = LazyTable(lambda: _spaces_of(TASKS.items()))


@cache
def study_grids() -> Mapping[str, Space]:
    """Return the grids of published experiments, by name."""
    return contributed("grids")


def registered_spaces() -> Mapping[str, Space]:
    """Return the spaces of registered tasks, by name."""
    return _spaces_of(registered_specs())


def load_space(
    reference: "str | SpaceFunction | Space",
    backbone: str | None = None,
    size: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Space:
    """Load a search space.

    A user-defined function may have the attributes of a `Space`: `baseline`, `free` (a list), `plain`,
    `as_baseline` and `with_backbone`. Without them, trial 0 and the trials that tune the baseline draw with
    `modules` = 0.

    Args:
        reference: A name in `SPACES`, `file.py:function`, `package.module:function`, a function or a `Space`.
        backbone: A backbone that replaces the space's own.
        size: The side of the images in pixels, for `backbone`.
        options: The options of `backbone`.

    Raises:
        InputError: The space is unknown or cannot be loaded, or takes no `backbone`.
    """
    if backbone is not None:
        space = load_space(reference)
        if space.with_backbone is None:
            names = [other.name for other in SPACES.values() if other.with_backbone]
            raise InputError(
                f"space {space.name!r} has backbones of its own and takes no --backbone; spaces that do are "
                f"{', '.join(names)}"
            )
        return space.with_backbone(backbone, size, options)
    name = space_name(reference)
    if isinstance(reference, str):
        named = {**SPACES, **study_grids()}  # which are not listed
        if name not in named and ":" not in name:
            named |= registered_spaces()
        if name in named:
            return named[name]
    draw = load_object("space", "function", name, SPACES) if isinstance(reference, str) else reference
    if isinstance(draw, Space):
        return draw
    plain = getattr(draw, "plain", {"modules": 0})
    return Space(
        name=name,
        draw=draw,
        baseline=getattr(draw, "baseline", plain),
        free=lambda: getattr(draw, "free", ()),
        plain=plain,
        as_baseline=getattr(draw, "as_baseline", without_attention),
        summary=name,
        with_backbone=getattr(draw, "with_backbone", None),
    )
