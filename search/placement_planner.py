"""The best placement by one draw of the effects of its parts.

A few sites and types make thousands of placements of three modules, so they are not listed: modules are
exchanged one by one for better ones until none is better, from several beginnings. Placements that were tried
are compared with what that leads to, as only they can have an effect of their own.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from search.placement_model import (
    CELL,
    COST,
    OPTION,
    PAIR,
    SITE,
    TYPE,
    Array,
    Effect,
    EffectDraw,
    IndexedModule,
    IndexedPlacement,
)

BEGINNINGS = 4
SWEEPS = 8  # exchanges of all modules; two or three are enough in nearly all cases


@dataclass(frozen=True, kw_only=True)
class PlacementChoices:
    """What placements there are.

    prefix: of the sites, as many as `sites`. types: all that were seen. options: of each type, the values of
    each option. most: modules at a time.
    """

    prefix: str
    sites: int
    types: Sequence[str]
    options: Mapping[str, Mapping[str, Sequence[Hashable]]]
    most: int


class Planner:
    """The gains of all modules and pairs that there are, by one draw of effects."""

    def __init__(self, draw: EffectDraw, choices: PlacementChoices) -> None:
        self.draw, self.choices = draw, choices
        self.options = {kind: self._best_options(kind) for kind in choices.types}
        prefix, types = choices.prefix, choices.types
        self.alone = np.array(
            [[self._alone(site, kind) for kind in types] for site in range(choices.sites)]
        )  # (sites, types)
        self._sites = _symmetric(
            choices.sites, lambda i, j: draw(Effect(PAIR, (prefix, i, j))), diagonal=False
        )
        self._types = _symmetric(
            len(types), lambda i, j: draw(Effect(PAIR, tuple(sorted((types[i], types[j]))))), diagonal=True
        )

    def _alone(self, site: int, kind: str) -> float:
        draw, prefix = self.draw, self.choices.prefix
        options = sum(draw(Effect(OPTION, (kind, *option))) for option in self.options[kind])
        return (
            draw(Effect(COST))
            + draw(Effect(SITE, (prefix, site)))
            + draw(Effect(TYPE, kind))
            + draw(Effect(CELL, (prefix, site, kind)))
            + options
        )

    def _best_options(self, kind: str) -> tuple[tuple[str, Hashable], ...]:
        found = []
        for name, values in sorted(self.choices.options.get(kind, {}).items()):
            gains = [self.draw(Effect(OPTION, (kind, name, value))) for value in values]
            found.append((name, values[int(np.argmax(gains))]))
        return tuple(found)

    def gains(self, others: Collection[tuple[int, int]]) -> Array:
        """Of one more module beside `others`, pairs of a site and a type by number: (sites, types)."""
        found: Array = self.alone.copy()
        for site, kind in others:
            found += self._sites[site][:, None] + self._types[kind][None, :]
        for site, _ in others:
            found[site] = -np.inf
        return found

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
        """The best placement, of `count` modules where that is given."""
        counts = range(self.choices.most + 1) if count is None else [count]
        found = []
        for number in counts:
            for beginning in range(BEGINNINGS if number > 1 else 1):
                modules: list[tuple[int, int]] = []
                for i in range(number):
                    gains = self.gains(modules)
                    if beginning and i == 0:  # elsewhere than at the best single module
                        gains = np.where(np.isfinite(gains), random.random(gains.shape), gains)
                    modules.append(_largest(gains))
                found.append(self._climb(modules))
        ahead = self.placement(max(found, key=self._total))
        rest = [
            one
            for one in tried
            if one.prefix == ahead.prefix and (count is None or len(one.modules) == count)
        ]
        return max([ahead, *rest], key=self.draw.total)

    def placement(self, modules: Sequence[tuple[int, int]]) -> IndexedPlacement:
        types = self.choices.types
        return IndexedPlacement(
            self.choices.prefix,
            tuple(
                IndexedModule(site, types[kind], self.options[types[kind]]) for site, kind in sorted(modules)
            ),
        )


def _largest(gains: Array) -> tuple[int, int]:
    site, kind = np.unravel_index(int(np.argmax(gains)), gains.shape)
    return int(site), int(kind)


def _symmetric(size: int, value: Callable[[int, int], float], *, diagonal: bool) -> Array:
    found = np.zeros((size, size))
    for i, j in product(range(size), repeat=2):
        if i < j or (diagonal and i == j):
            found[i, j] = found[j, i] = value(i, j)
    return found
