"""The best placement by one draw of the effects.

A few sites and types make thousands of placements of three modules, so they are not enumerated. Modules are
exchanged one by one for better ones until none is better, from several starts. The result is compared with
the placements that were tried, since only these can have their own `placement` effect.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, combinations_with_replacement, groupby, product
from math import comb
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial

from search.choices import MODULES, NO_TYPE, SITE, TYPE, parse_parameter
from search.placement_effects import Array, Effect, IndexedModule, IndexedPlacement, Term
from search.placement_model import EffectDraw

STARTS = 4
SWEEPS = 8  # rounds of exchanges of all modules; two or three suffice in nearly all cases


@dataclass(frozen=True, kw_only=True)
class PlacementChoices:
    """The placements to choose from.

    Attributes:
        prefix: The prefix of the sites.
        sites: The number of sites.
        types: All attention types that trials could choose.
        options: For each type, the values of each option.
        most: The largest number of modules.
        least: The smallest number of modules.
    """

    prefix: str
    sites: int
    types: Sequence[str]
    options: Mapping[str, Mapping[str, Sequence[Hashable]]]
    most: int
    least: int = 0


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
        for name, distribution in trial.distributions.items():
            parameter = parse_parameter(name)
            if parameter is None or parameter.kind in (MODULES, SITE):
                continue
            kind = trial.params.get(f"{TYPE}{parameter.module}", NO_TYPE)
            if isinstance(distribution, CategoricalDistribution):
                if parameter.kind == TYPE:
                    self.types.update(dict.fromkeys(map(str, distribution.choices)))
                else:
                    self.options.setdefault(kind, {})[parameter.kind] = distribution.choices
            elif name in trial.params:
                self.numbers[kind, parameter.kind] = trial.params[name]

    def placements(self, prefix: str, sites: int, *, least: int, most: int) -> PlacementChoices:
        """Return the placements at these sites, with `least` to `most` modules of any type."""
        types = list(self.types) or [NO_TYPE]
        return PlacementChoices(
            prefix=prefix, sites=sites, types=types, options=self.options, most=most, least=least
        )


def list_modules(choices: PlacementChoices) -> Iterator[IndexedModule]:
    """Yield each module at each site, with all combinations of its options, by site."""
    for site, kind in product(range(choices.sites), choices.types):
        options = sorted(choices.options.get(kind, {}).items())
        for values in product(*(values for _, values in options)):
            yield IndexedModule(
                site, kind, tuple((name, value) for (name, _), value in zip(options, values, strict=True))
            )


def count_placements(choices: PlacementChoices) -> int:
    """Return the number of placements."""
    at_site = len(list(list_modules(choices))) // choices.sites
    counts = range(choices.least, choices.most + 1)
    return sum(comb(choices.sites, count) * at_site**count for count in counts)


def enumerate_placements(choices: PlacementChoices) -> Iterator[IndexedPlacement]:
    """Yield all placements."""
    at_site = [list(group) for _, group in groupby(list_modules(choices), key=lambda module: module.site)]
    for count in range(choices.least, choices.most + 1):
        for sites in combinations(at_site, count):
            for modules in product(*sites):
                yield IndexedPlacement(choices.prefix if modules else "", modules)


class Planner:
    """Gains of all modules, `alone` by site and type, and of pairs of modules, by one draw of the effects."""

    def __init__(self, draw: EffectDraw, choices: PlacementChoices) -> None:
        self.draw, self.choices = draw, choices
        self.options = {kind: self._best_options(kind) for kind in choices.types}
        types, sites = choices.types, range(choices.sites)
        self.alone = np.array([[self._alone(site, kind) for kind in types] for site in sites])
        self._sites, self._types = np.zeros((len(sites), len(sites))), np.zeros((len(types), len(types)))
        for i, j in combinations(sites, 2):
            self._sites[i, j] = self._sites[j, i] = draw(Effect(Term.PAIR, (choices.prefix, i, j)))
        for i, j in combinations_with_replacement(range(len(types)), 2):
            pair = tuple(sorted((types[i], types[j])))
            self._types[i, j] = self._types[j, i] = draw(Effect(Term.PAIR, pair))

    def _alone(self, site: int, kind: str) -> float:
        module = IndexedModule(site, kind, self.options[kind])
        return self.draw.total(IndexedPlacement(self.choices.prefix, (module,)), own=False)

    def _best_options(self, kind: str) -> tuple[tuple[str, Hashable], ...]:
        def gain(name: str, value: Hashable) -> float:
            return self.draw(Effect(Term.OPTION, (kind, name, value)))

        options = sorted(self.choices.options.get(kind, {}).items())
        return tuple((name, max(values, key=partial(gain, name))) for name, values in options)

    def gains(self, others: Collection[tuple[int, int]]) -> Array:
        """Return the gains of one more module, given the modules `others`, `(sites, types)`.

        `others` holds pairs of the indices of a site and a type.
        """
        total: Array = self.alone.copy()
        for site, kind in others:
            total += self._sites[site][:, None] + self._types[kind][None, :]
        for site, _ in others:
            total[site] = -np.inf
        return total

    def _total(self, modules: Sequence[tuple[int, int]]) -> float:
        return float(sum(self.gains(modules[:i])[module] for i, module in enumerate(modules)))

    def _climb(self, modules: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Exchange modules until none is better."""
        for _ in range(SWEEPS):
            before = list(modules)
            for i in range(len(modules)):
                modules[i] = _largest(self.gains(modules[:i] + modules[i + 1 :]))
            if modules == before:
                break
        return modules

    def best(
        self, tried: Collection[IndexedPlacement], random: np.random.Generator, count: int | None = None
    ) -> IndexedPlacement:
        """Return the best placement, with `count` modules if `count` is set."""
        counts = range(self.choices.least, self.choices.most + 1) if count is None else [count]
        candidates = []
        for number in counts:
            for start in range(STARTS if number > 1 else 1):
                modules: list[tuple[int, int]] = []
                for i in range(number):
                    gains = self.gains(modules)
                    if start and i == 0:  # other starts begin with a random module
                        gains = np.where(np.isfinite(gains), random.random(gains.shape), gains)
                    modules.append(_largest(gains))
                candidates.append(self._climb(modules))
        best = self.placement(max(candidates, key=self._total))
        others = [
            placement
            for placement in tried
            if placement.prefix == best.prefix and (count is None or len(placement.modules) == count)
        ]
        return max([best, *others], key=self.draw.total)

    def placement(self, modules: Sequence[tuple[int, int]]) -> IndexedPlacement:
        types = self.choices.types
        chosen = (
            IndexedModule(site, types[kind], self.options[types[kind]]) for site, kind in sorted(modules)
        )
        return IndexedPlacement(self.choices.prefix, tuple(chosen))


def _largest(gains: Array) -> tuple[int, int]:
    site, kind = np.unravel_index(int(np.argmax(gains)), gains.shape)
    return int(site), int(kind)
