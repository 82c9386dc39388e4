"""The attention types and options between which a study's trials could choose."""

from collections.abc import Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

from search.choices import MODULES, SITE, TYPE, parse_parameter

NO_TYPE = ""  # type of modules in a space that draws no types


class DrawnChoices:
    """Choices of the trials that were added.

    Attributes:
        types: All attention types that trials could choose.
        options: For each type, the values of each option.
        numbers: The latest value of each option with a range of numbers, by type and name.
    """

    def __init__(self) -> None:
        self.types: dict[str, None] = {}
        self.options: dict[str, dict[str, Sequence[Any]]] = {}
        self.numbers: dict[tuple[str, str], float] = {}

    def add(self, trial: FrozenTrial) -> None:
        """Add the choices of a trial."""
        distribution: Any
        for name, distribution in trial.distributions.items():
            parameter = parse_parameter(name)
            if parameter is None or parameter.kind in (MODULES, SITE):
                continue
            kind = trial.params.get(f"{TYPE}{parameter.module}", NO_TYPE)
            if parameter.kind == TYPE:
                self.types.update(dict.fromkeys(distribution.choices))
            elif has_choices(distribution):
                self.options.setdefault(kind, {})[parameter.kind] = distribution.choices
            elif name in trial.params:
                self.numbers[kind, parameter.kind] = trial.params[name]


def has_choices(distribution: BaseDistribution) -> bool:
    """Return whether a parameter is a choice, not a number of a range."""
    return isinstance(distribution, CategoricalDistribution)
