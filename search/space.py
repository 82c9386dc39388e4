"""A search space: a pure function from an Optuna trial to a TrialConfig, and what goes with it."""

import hashlib
import inspect
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import distribution_to_json

from attention import InputError
from search.config import TrialConfig
from search.memory_study import memory_study

SpaceFunction = Callable[[optuna.Trial], TrialConfig]


# What a function may be given as an attribute, in values that can be written down.
ATTRIBUTES = ("baseline", "published", "plain")


def without_attention(config: TrialConfig) -> TrialConfig:
    """The plain backbone, with all else the same."""
    return config.change(model={"placement": {}})


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space: a function that draws a configuration, and what goes with it.

    A plain function of an Optuna trial works as a space, too. A `Space` adds the configurations to begin
    with.

    Attributes:
        name: The name of the space.
        draw: Draws a configuration with the trial's `suggest_` methods, and does nothing else.
        baseline: The parameters of trial 0: the plain backbone with published defaults. Parameters that are
            not named are drawn.
        summary: One line for `automl spaces`.
        published: Returns the parameters of the next trials: the placements that papers propose.
        plain: Parameters that make a trial plain, for trials that tune the baseline.
        as_baseline: Returns the configuration with the model of the baseline and its own hyperparameters. A
            configuration that it leaves unchanged is a baseline.
        with_backbone: Returns the space of another backbone, given its name and the image side in pixels, or
            None for the side of the space. None if the space has backbones of its own.

    Raises:
        InputError: `draw` raises an error, or does not return a `TrialConfig`.

    Example:
        >>> import automl, optuna
        >>> def draw(trial):
        ...     rate = trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True)
        ...     return automl.TrialConfig().change(training={"learning_rate": rate})
        >>> given = {"learning_rate": 0.001}
        >>> space = automl.Space(name="rates", draw=draw, baseline=given, summary="One learning rate.")
        >>> space(optuna.trial.FixedTrial({"learning_rate": 0.005})).training.learning_rate
        0.005
    """

    name: str
    draw: Callable[[optuna.Trial], TrialConfig]
    baseline: Mapping[str, Any]
    summary: str
    published: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    plain: Mapping[str, Any] = field(default_factory=lambda: {"modules": 0})
    as_baseline: Callable[[TrialConfig], TrialConfig] = without_attention
    with_backbone: Callable[[str, int | None], "Space"] | None = None

    def __call__(self, trial: optuna.Trial) -> TrialConfig:
        """`draw`, with errors of a user-defined function as an InputError."""
        try:
            config: object = self.draw(trial)
        except (optuna.TrialPruned, InputError):
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise InputError(
                f"space {self.name!r} raised {type(error).__name__}: {error} "
                f"({Path(where.filename).name}, line {where.lineno})"
            ) from error
        if not isinstance(config, TrialConfig):
            raise InputError(
                f"space {self.name!r} must return a search.config.TrialConfig; got {type(config).__name__}"
            )
        return config.load()


def random_draws(
    space: Space, count: int, *, seed: int = 0, given: Mapping[str, Any] | None = None
) -> Iterator[tuple[optuna.Trial, TrialConfig | None]]:
    """Draws independent of any search: each trial and its configuration, None where the space refuses.

    given: parameters of the first one.
    """
    study = memory_study(optuna.samplers.RandomSampler(seed))
    if given is not None:
        study.enqueue_trial(dict(given))
    for _ in range(count):
        trial = study.ask()
        try:
            yield trial, space(trial)
        except optuna.TrialPruned:
            yield trial, None


def fingerprint(space: Space) -> str:
    """Of a space: `PARAMETERS-CONFIGURATIONS`, of what it draws from and of what it makes of that.

    The same for two spaces whose trials can stand in one study. It is of 50 random draws and has nothing of
    the command line in it. The seed is left out, and where the images lie: which these are, the search's list
    of images tells.

    Raises InputError for a space whose configurations do not follow from the parameters.
    """
    drawn, again = (list(random_draws(space, 50)) for _ in range(2))
    parts = set()
    for trial, _ in drawn:
        parts |= {(name, distribution_to_json(kind)) for name, kind in trial.distributions.items()}
    # Ranges that depend on an earlier choice have many forms; of those the names alone.
    names = Counter(name for name, _ in parts)
    distributions = {(name, kind if names[name] == 1 else "") for name, kind in parts}
    made, twice = (
        [(_rounded(trial.params), _rounded(_essence(config))) for trial, config in draws]
        for draws in (drawn, again)
    )
    if made != twice:
        raise InputError(
            f"space {space.name!r} makes another configuration of the same parameters each time; draw "
            f"whatever varies with the trial's suggest_ methods"
        )
    return f"{_hash(sorted(distributions))}-{_hash(made)}"


def same_parameters(one: str, other: str) -> bool:
    """Whether two fingerprints are of spaces that draw the same parameters, whatever they make of them."""
    return one.partition("-")[0] == other.partition("-")[0]


def _essence(config: TrialConfig | None) -> dict[str, Any] | None:
    """What decides on what is computed; None of a refused draw."""
    if config is None:
        return None
    value = config.change(data={"path": None}, seed=0).to_json()
    model = value["model"]
    if model["code"]:  # which tells, wherever its file lies
        model["backbone"] = model["backbone"].rpartition("/")[2]
    return value


def _rounded(value: Any) -> Any:
    """With floats as text of six digits: the last ones may differ between machines."""
    if isinstance(value, Mapping):
        return {key: _rounded(value[key]) for key in sorted(value)}
    return f"{value:.6g}" if isinstance(value, float) else value


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def space_name(space: "str | SpaceFunction | Space") -> str:
    """A space's name; `module:function` of a function, such as `__main__:mine` of one in a notebook."""
    if isinstance(space, str):
        return space
    if isinstance(space, Space):
        return space.name
    function = inspect.unwrap(space)
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(space).__name__)}"


def source_of(space: Space) -> str:
    """The Python of the function that draws, and what it was given as attributes; empty where it has none.

    What it imports and calls is not in it.
    """
    draw = space.draw
    try:
        lines = [inspect.cleandoc("\n" + inspect.getsource(draw))]
    except (OSError, TypeError):
        return ""
    name = getattr(draw, "__name__", "draw")
    lines += [f"{name}.{key} = {getattr(draw, key)!r}" for key in ATTRIBUTES if hasattr(draw, key)]
    return "\n".join(lines) + "\n"
