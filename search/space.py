"""Search spaces: pure functions from an Optuna trial to a TrialConfig, with their settings."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection

from automl.base import loading
from automl.base.errors import InputError, describe_error
from search.choices import types_of
from search.config import TrialConfig

SpaceFunction = Callable[[optuna.Trial], TrialConfig]


KINDS = "kinds"  # parameter of a space function that gets the attention types

# Attributes of a space function that provenance records, since their values can be written as text.
ATTRIBUTES = ("baseline", "published", "plain")


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
        published: Returns the parameters of the next trials: the placements that papers propose.
        plain: Parameters that make a trial plain, for trials that tune the baseline.
        candidate: Parameters of the trials that the sampler draws. By default it draws all.
        placing: Names of parameters that choose the placement, besides those of `search.choices`.
        as_baseline: Returns the configuration with the model of the baseline and its own hyperparameters. A
            configuration that it leaves unchanged is a baseline.
        with_backbone: Returns the space of another backbone, given its name, the image side in pixels, or
            None for the side of the space, and its options. None if the space has backbones of its own.
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
    draw: Callable[[optuna.Trial], TrialConfig]
    baseline: Mapping[str, Any]
    summary: str
    published: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    plain: Mapping[str, Any] = field(default_factory=lambda: {"modules": 0})
    candidate: Mapping[str, Any] = field(default_factory=dict)
    placing: Collection[str] = ()
    as_baseline: Callable[[TrialConfig], TrialConfig] = without_attention
    with_backbone: Callable[[str, int | None, Mapping[str, Any]], "Space"] | None = None
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
        """Return the space that draws these attention types, and tries published placements of them.

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
            published=lambda: [params for params in self.published() if types_of(params) <= names],
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

    def __call__(self, trial: optuna.Trial) -> TrialConfig:
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


def memory_study(sampler: BaseSampler, *, directions: Sequence[StudyDirection] | None = None) -> optuna.Study:
    """Create an empty study in memory, by default to minimise one objective, without a log message."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(directions=directions, sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)


def draw_randomly(
    space: Space, count: int, *, seed: int = 0, first: Mapping[str, Any] | None = None
) -> Iterator[tuple[optuna.Trial, TrialConfig | None]]:
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
