"""Checks the parameters that a space fixes (`baseline`, `published`, `plain`); Optuna only warns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from attention import InputError
from search.config import TrialConfig
from search.memory_study import memory_study
from search.optuna_internals import identifier_of
from search.record import placement_name
from search.space import Space

DRAWS = 20  # of each: what is given may be asked for in some of them alone


def check_fixed_parameters(space: Space) -> None:
    """Raises InputError when the space's `baseline`, `plain` or `published` do not fit the space.

    That is a value out of its range, a parameter that is never asked for, and a plain trial that has
    attention in it. `modules` = 0 is not asked for where there are never any.
    """
    for what, params in (("baseline", space.baseline), ("plain", space.plain)):
        for config in _configs(space, what, params):
            if space.as_baseline(config) != config:
                raise InputError(
                    f"`{what}` of space {space.name!r}, {dict(params)}, comes out with attention in it "
                    f"({placement_name(config)}); set FUNCTION.{what} to the parameters that make a trial "
                    f"the plain backbone, such as {{'modules': 0}}"
                )
    for params in space.published():
        _configs(space, "published", params)


def _configs(space: Space, what: str, params: Mapping[str, Any]) -> list[TrialConfig]:
    """What comes of parameters that are given, other ones drawn; less what the space refuses."""
    study = memory_study(optuna.samplers.RandomSampler(0))
    made, asked = [], set[str]()
    for _ in range(DRAWS):
        study.enqueue_trial(dict(params))
        trial = _Checked(study, identifier_of(study.ask()))
        trial.space, trial.what, trial.given = space, what, params
        with suppress(optuna.TrialPruned):
            made.append(space(trial))
        asked |= trial.distributions.keys()
    idle = [key for key in params if key not in asked and (key, params[key]) != ("modules", 0)]
    if made and idle:
        near = get_close_matches(idle[0], sorted(asked), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InputError(
            f"`{what}` of space {space.name!r} names the parameter {idle[0]!r}, which is never asked for "
            f"beside its others; asked for are {', '.join(sorted(asked)) or 'none'}.{hint}"
        )
    return made


class _Checked(optuna.Trial):
    """A trial that refuses what it was given where that does not fit."""

    space: Space
    what: str
    given: Mapping[str, Any]

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        self._check(name, CategoricalDistribution(choices))
        return super().suggest_categorical(name, choices)

    def suggest_float(self, name: str, low: float, high: float, **options: Any) -> float:
        self._check(name, FloatDistribution(low, high, **options))
        return super().suggest_float(name, low, high, **options)

    def suggest_int(self, name: str, low: int, high: int, **options: Any) -> int:
        self._check(name, IntDistribution(low, high, **options))
        return super().suggest_int(name, low, high, **options)

    def _check(self, name: str, distribution: BaseDistribution) -> None:
        if name in self.given and not fits(self.given[name], distribution):
            raise InputError(
                f"`{self.what}` of space {self.space.name!r} gives the parameter {name!r} the value "
                f"{self.given[name]!r}; choose {_range(distribution)}"
            )


def fits(value: Any, distribution: BaseDistribution) -> bool:
    """Return whether a parameter of this distribution can have the value."""
    try:
        number = distribution.to_internal_repr(value)
    except (ValueError, TypeError):  # of another type, or not among the choices
        return False
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return True
    steps = (number - distribution.low) / distribution.step if distribution.step is not None else 0.0
    return distribution.low <= number <= distribution.high and abs(steps - round(steps)) < 1e-8


def _range(distribution: Any) -> str:
    if isinstance(distribution, CategoricalDistribution):
        return f"from {', '.join(map(repr, distribution.choices))}"
    steps = f" in steps of {distribution.step:g}" if distribution.step not in (None, 1) else ""
    return f"from {distribution.low:g} to {distribution.high:g}{steps}"
