"""The draws of a space that all checks before a search share.

One of them checks the parameters that the space fixes (`baseline`, `free`, `plain`), since Optuna only
warns.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from sys import maxsize
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from automl.base import loading
from automl.base.errors import InputError
from search.choices import SITES
from search.config import TrialConfig
from search.config.sections import Training
from search.grid import Cell, grid_cells
from search.optuna_internals import identifier_of
from search.space import Space, draw_randomly, memory_study

DRAWS = 20  # of a set that leaves parameters free, since those it sets may be drawn in some trials only


def check_fixed_parameters(space: Space) -> None:
    """Check that `baseline`, `plain` and `free` fit the space.

    `modules` = 0 is accepted in a space that never draws modules. Raises InputError if a value is out of
    range, a parameter is never drawn, or a plain trial has attention.
    """
    for attribute, params in (("baseline", space.baseline), ("plain", space.plain)):
        for config in _configs(space, attribute, params):
            if space.as_baseline(config) != config:
                raise InputError(
                    f"`{attribute}` of space {space.name!r}, {dict(params)}, draws attention "
                    f"({config.model.placement_name()}); set FUNCTION.{attribute} to parameters that draw "
                    f"the plain backbone, such as {{'modules': 0}}"
                )
    for params in space.free():
        _configs(space, "free", params)


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


Draw = tuple[optuna.Trial, TrialConfig | None]

FEW = 20  # draws that show whether a space draws placements
MARKED, REPEATED = 50, 40  # draws in a fingerprint, and draws that are repeated to compare them


class Drawn:
    """Space with one sequence of random draws. Each is drawn once, when it is first needed.

    All configurations are final, as trials have them. `seed` is that of trial 0.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        self.space, self.seed = space, seed
        self._own = replace(space, adjust=lambda config: config)  # which the fingerprint and checks are of
        self._draws: list[Draw] = []
        self._more = draw_randomly(self._own, maxsize)

    def _draw(self, index: int) -> Draw:
        """Return a trial, and the space's own configuration or None if the space rejects the draw."""
        while len(self._draws) <= index:
            self._draws.append(next(self._more))
        return self._draws[index]

    def trials(self, count: int) -> list[optuna.Trial]:
        """Return the trials of the first draws."""
        return [self._draw(i)[0] for i in range(count)]

    def configs(self, count: int) -> list[TrialConfig]:
        """Return the configurations of the first draws, without rejected ones."""
        draws = (self._draw(i)[1] for i in range(count))
        return [self.space.adjust(config) for config in draws if config is not None]

    @property
    def has_placements(self) -> bool:
        """True if the space draws placements with `search.choices`."""
        return any(SITES in trial.user_attrs for trial in self.trials(FEW))

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of a grid, as of `grid_cells`."""
        return grid_cells(self.space)

    @cached_property
    def baseline(self) -> TrialConfig:
        """The configuration of trial 0, as any study draws it. Raises InputError if the space rejects it."""
        check_fixed_parameters(self._own)
        _, config = next(draw_randomly(self.space, 1, seed=self.seed, first=self.space.baseline))
        if config is None:
            raise InputError(
                f"space {self.space.name!r} raised TrialPruned for its own baseline; change its `baseline`"
            )
        return config

    @cached_property
    def fingerprint(self) -> str:
        """`PARAMETERS-CONFIGURATIONS`, a hash of the parameters and a hash of the drawn configurations.

        Spaces with the same fingerprint can share one study. It does not depend on the settings of the
        command line, the seed and the path of the data: the manifest of the search identifies the data.
        Raises InputError if the space draws different configurations from the same parameters.
        """
        ranges = set()
        for trial in self.trials(MARKED):
            ranges |= {(name, distribution_to_json(kind)) for name, kind in trial.distributions.items()}
        # A range that depends on an earlier choice has many forms. Only the names of such parameters count.
        names = Counter(name for name, _ in ranges)
        distributions = {(name, kind if names[name] == 1 else "") for name, kind in ranges}
        draws = [_content(*self._draw(i)) for i in range(MARKED)]
        if draws[:REPEATED] != [_content(*draw) for draw in draw_randomly(self._own, REPEATED)]:
            raise InputError(
                f"space {self.space.name!r} returned different configurations for the same parameters; draw "
                f"all values that vary with the trial's suggest_ methods"
            )
        return f"{_hash(sorted(distributions))}-{_hash(draws)}"


def _content(trial: optuna.Trial, config: TrialConfig | None) -> tuple[Any, Any]:
    """Return the parameters and the configuration of a draw, without its seed and paths."""
    return _rounded(trial.params), None if config is None else _rounded(_essence(config))


def _essence(config: TrialConfig) -> dict[str, Any]:
    """Return the configuration without its seed and paths."""
    value = config.change(data={"path": None}, seed=0).to_json()
    model = value["model"]
    if model["code"]:  # the hash identifies the code, wherever its file is
        model["backbone"] = model["backbone"].rpartition("/")[2]
    for spec in model["placement"].values():
        spec["type"] = loading.short_name(spec["type"])
    if "optimizer" in value["training"]:  # Earlier versions have the same fingerprints.
        value["training"] |= Training.REMOVED
    return value


def _rounded(value: Any) -> Any:
    """Convert floats to text of six digits, since further digits may differ between machines."""
    if isinstance(value, Mapping):
        return {key: _rounded(value[key]) for key in sorted(value)}
    return f"{value:.6g}" if isinstance(value, float) else value


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
