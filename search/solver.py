"""The placement with the highest posterior mean under limits on its costs.

A placement has a slot for each module that it may have, and a slot may stay empty. Slots are exchanged, one
or two at once, until no exchange is better. This is repeated from several starts: the best placements that
were tried, and the smallest one. What exceeds a limit counts more than any gain, so a start need not meet the
limits. The results are ranked with the placements that were tried, which also have an effect of their own
(`Term.PLACEMENT`). Of a small space, all placements are ranked.

`benchmarks/bench_solve.py` compares the results with an enumeration of all placements.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain, combinations
from math import fsum

import numpy as np

from search.placement_effects import Array, Effect, IndexedModule, IndexedPlacement, Term, total_weights
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices, count_placements, enumerate_placements, list_modules

FEW = 1000  # placements of a space up to which all are ranked
STARTS = 8  # tried placements to start from
SLACK = 1e-6  # smallest gain of an exchange, in standard deviations of the scores
PENALTY = 1e6  # of what exceeds a limit, in units of the largest cost of a module

Slots = list[int]  # indices of modules; the number of modules stands for an empty slot


@dataclass(frozen=True, kw_only=True)
class AdditiveCost:
    """Cost of a placement as a sum.

    Attributes:
        plain: The cost of the model without a placement.
        modules: The cost that each module adds.
    """

    plain: float
    modules: Mapping[IndexedModule, float]

    def __call__(self, placement: IndexedPlacement) -> float:
        """Return the cost of the model with a placement."""
        return fsum([self.plain, *(self.modules[module] for module in placement.modules)])


class PlacementSolver:
    """The best placements of a space under limits.

    Args:
        model: The posterior of the effects.
        choices: The placements to choose from.
        tried: The placements of completed trials. Those that `choices` lacks are ignored.
        costs: The costs by name. A module that one of them lacks is not chosen.
    """

    def __init__(
        self,
        model: EffectModel,
        choices: PlacementChoices,
        tried: Collection[IndexedPlacement] = (),
        costs: Mapping[str, AdditiveCost] | None = None,
    ) -> None:
        self.choices, self.costs = choices, costs or {}
        self.modules = [
            module
            for module in list_modules(choices)
            if all(module in cost.modules for cost in self.costs.values())
        ]
        self._index = {module: i for i, module in enumerate(self.modules)}
        self._empty = len(self.modules)
        sites = np.array([module.site for module in self.modules], int)
        types = np.array([choices.types.index(module.type) for module in self.modules], int)
        self._clash = np.zeros((self._empty + 1,) * 2, bool)  # of modules at the same site
        self._clash[:-1, :-1] = sites[:, None] == sites
        tried = [placement for placement in dict.fromkeys(tried) if self._includes(placement)]
        alone = [
            total_weights(IndexedPlacement(choices.prefix, (module,)), own=False) for module in self.modules
        ]
        site_pairs = [
            (choices.prefix, *sorted((i, j))) for i in range(choices.sites) for j in range(choices.sites)
        ]
        type_pairs = [tuple(sorted((a, b))) for a in choices.types for b in choices.types]
        pairs = [{Effect(Term.PAIR, pair): 1.0} for pair in chain(site_pairs, type_pairs)]
        totals = [total_weights(placement) for placement in tried]
        of_modules, of_sites, of_types, of_tried = np.split(
            model.expect([*alone, *pairs, *totals]) / model.scale,
            np.cumsum([len(alone), len(site_pairs), len(type_pairs)]),
        )
        self._totals: dict[IndexedPlacement, float] = dict(zip(tried, of_tried.tolist(), strict=True))
        self._alone = np.append(of_modules, 0.0)
        self._pairs = np.zeros((self._empty + 1,) * 2)
        self._pairs[:-1, :-1] = of_sites.reshape((choices.sites,) * 2)[np.ix_(sites, sites)]
        self._pairs[:-1, :-1] += of_types.reshape((len(choices.types),) * 2)[np.ix_(types, types)]
        self._added = {
            name: np.array([*(cost.modules[module] for module in self.modules), 0.0])
            for name, cost in self.costs.items()
        }

    def _includes(self, placement: IndexedPlacement) -> bool:
        return (
            (placement.prefix == self.choices.prefix or not placement.modules)
            and self.choices.least <= len(placement.modules) <= self.choices.most
            and all(module in self._index for module in placement.modules)
        )

    def solve(
        self, limits: Mapping[str, float] | None = None, without: Collection[IndexedPlacement] = ()
    ) -> IndexedPlacement | None:
        """Return the placement with the highest posterior mean within the limits, or None if there is none.

        `limits` are the largest values of costs, by the names of `costs`. Those `without` are not chosen.
        """
        limits = limits or {}
        tried = [placement for placement in self._totals if self.meets(placement, limits)]
        tried.sort(key=self._totals.__getitem__, reverse=True)
        starts = [self._smallest(), *(self._slots(placement) for placement in tried[:STARTS])]
        candidates = dict.fromkeys(tried)
        if count_placements(self.choices) <= FEW:
            candidates |= dict.fromkeys(enumerate_placements(self.choices))
        for start in starts:
            slots = self._climb(start, self._alone, self._pairs, limits)
            candidates[self._placement(slots)] = None
            # One that was tried may be worse than the sum of its parts, and then its neighbour is better.
            candidates |= dict.fromkeys(map(self._placement, self._list_neighbours(slots)))
        allowed = (
            placement
            for placement in candidates
            if placement not in without and self._includes(placement) and self.meets(placement, limits)
        )
        return max(allowed, key=self._total, default=None)

    def cheapest(self, cost: str, limits: Mapping[str, float] | None = None) -> IndexedPlacement | None:
        """Return the placement with the lowest cost of a name within the limits, or None if there is none."""
        added = self._added[cost]
        slots = self._climb(self._smallest(), -added / _size(added), np.zeros_like(self._pairs), limits or {})
        placement = self._placement(slots)
        is_valid = self._includes(placement) and self.meets(placement, limits or {})
        return placement if is_valid else None

    def meets(self, placement: IndexedPlacement, limits: Mapping[str, float]) -> bool:
        """Return True if no cost of a placement exceeds its limit."""
        return all(self.costs[name](placement) <= limit for name, limit in limits.items())

    def _climb(self, slots: Slots, alone: Array, pairs: Array, limits: Mapping[str, float]) -> Slots:
        """Exchange one or two slots at once until none is better, by gains of modules and of pairs."""

        def gains(others: Slots, count: int) -> Array:
            """Return the gain of the modules in `count` more slots, `(modules,) * count`."""
            gain = alone + pairs[others].sum(axis=0)
            gain[self._clash[others].any(axis=0)] = -np.inf
            value = gain if count == 1 else np.where(self._clash, -np.inf, gain[:, None] + gain + pairs)
            for name, limit in limits.items():
                added = self._added[name]
                spent = self.costs[name].plain + added[others].sum()
                spent = spent + (added if count == 1 else added[:, None] + added)
                value = value - PENALTY * np.maximum(0.0, (spent - limit) / _size(added))
            room = self.choices.most - self.choices.least - others.count(self._empty)  # for empty slots
            if count == 2 and room < 2:
                value[-1, -1] = -np.inf
            if room < 1:
                value[-1] = value[..., -1] = -np.inf
            return value

        def exchange(positions: tuple[int, ...]) -> bool:
            others = [slot for place, slot in enumerate(slots) if place not in positions]
            value = gains(others, len(positions))
            best = np.unravel_index(int(np.argmax(value)), value.shape)
            if value[best] <= value[tuple(slots[place] for place in positions)] + SLACK:
                return False
            for place, slot in zip(positions, best, strict=True):
                slots[place] = int(slot)
            return True

        single = [(place,) for place in range(len(slots))]
        while any(map(exchange, [*single, *combinations(range(len(slots)), 2)])):
            pass  # each exchange is a gain, so this ends
        return slots

    def _list_neighbours(self, slots: Slots) -> list[Slots]:
        """Return the slots that differ in one from these."""
        return [
            [*others, slot]
            for place in range(len(slots))
            for others in [slots[:place] + slots[place + 1 :]]
            for slot in np.flatnonzero(~self._clash[others].any(axis=0)).tolist()
        ]

    def _smallest(self) -> Slots:
        """Return slots with the smallest number of modules, whatever they cost."""
        at_site = {module.site: i for i, module in enumerate(self.modules)}
        return self._fill(list(at_site.values())[: self.choices.least])

    def _slots(self, placement: IndexedPlacement) -> Slots:
        return self._fill([self._index[module] for module in placement.modules])

    def _fill(self, chosen: Slots) -> Slots:
        return chosen + [self._empty] * (self.choices.most - len(chosen))

    def _placement(self, slots: Slots) -> IndexedPlacement:
        modules = sorted(
            (self.modules[slot] for slot in slots if slot != self._empty), key=lambda module: module.site
        )
        return IndexedPlacement(self.choices.prefix if modules else "", tuple(modules))

    def _total(self, placement: IndexedPlacement) -> float:
        """Return the posterior mean of a placement, relative to the intercept."""
        if placement in self._totals:
            return self._totals[placement]
        slots = self._slots(placement)
        pairs = sum(self._pairs[pair] for pair in combinations(slots, 2))
        return float(self._alone[slots].sum() + pairs)


def _size(added: Array) -> float:
    """Return the largest cost of a module, or 1 if none costs anything."""
    return float(np.abs(added).max()) or 1.0
