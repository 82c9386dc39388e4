"""Checks the parameters that a space fixes (`baseline`, `published`, `plain`), since Optuna only warns."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from automl.base.errors import InputError
from search.config import TrialConfig
from search.optuna_internals import identifier_of
from search.record import placement_name
from search.space import Space, memory_study

DRAWS = 20  # of a set that leaves parameters free, since those it sets may be drawn in some trials only


def check_fixed_parameters(space: Space) -> None:
    """Check that `baseline`, `plain` and `published` fit the space.

    `modules` = 0 is accepted in a space that never draws modules.

    Raises:
        InputError: A value is out of range, a parameter is never drawn, or a plain trial has attention.
    """
    for attribute, params in (("baseline", space.baseline), ("plain", space.plain)):
        for config in _configs(space, attribute, params):
            if space.as_baseline(config) != config:
                raise InputError(
                    f"`{attribute}` of space {space.name!r}, {dict(params)}, draws attention "
                    f"({placement_name(config)}); set FUNCTION.{attribute} to parameters that draw the plain "
                    f"backbone, such as {{'modules': 0}}"
                )
    for params in space.published():
        _configs(space, "published", params)


def _configs(space: Space, attribute: str, params: Mapping[str, Any]) -> list[TrialConfig]:
    """Return the configurations that the space draws with `params` fixed, without rejected draws."""
    study = memory_study(optuna.samplers.RandomSampler(0))
    configs, drawn = [], set[str]()
    for _ in range(DRAWS):
        study.enqueue_trial(dict(params))
        trial = _Checked(study, identifier_of(study.ask()))
        trial.space, trial.attribute, trial.fixed = space, attribute, params
        with suppress(optuna.TrialPruned):
            configs.append(space(trial))
        drawn |= trial.distributions.keys()
        if trial.distributions.keys() <= params.keys():  # all other draws are the same
            break
    idle = [key for key in params if key not in drawn and (key, params[key]) != ("modules", 0)]
    if configs and idle:
        matches = get_close_matches(idle[0], sorted(drawn), n=1)
        hint = f" Did you mean {matches[0]!r}?" if matches else ""
        raise InputError(
            f"`{attribute}` of space {space.name!r} names the parameter {idle[0]!r}, which the space never "
            f"draws with the others; it draws {', '.join(sorted(drawn)) or 'none'}.{hint}"
        )
    return configs


class _Checked(optuna.Trial):
    """Trial that raises an error if a fixed parameter is out of range."""

    space: Space
    attribute: str
    fixed: Mapping[str, Any]

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
        if name in self.fixed and not is_allowed(self.fixed[name], distribution):
            raise InputError(
                f"`{self.attribute}` of space {self.space.name!r} sets the parameter {name!r} to "
                f"{self.fixed[name]!r}; choose {_range(distribution)}"
            )


def is_allowed(value: Any, distribution: BaseDistribution) -> bool:
    """Return True if a parameter of this distribution can have the value."""
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
