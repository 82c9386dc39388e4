"""The placement with the highest posterior mean under limits on its costs, exactly, by integer programming.

Effects of modules add up, and so do their costs. Each pair of modules adds an effect of its sites and one of
its types. Both are products of variables, which are linearised:

- A variable of each pair of sites is 1 if both have a module.
- Effects of pairs of types depend only on the numbers of modules of the types. One binary variable for each
  combination of types makes them linear. Of many modules there are too many combinations. Then the product
  of two numbers is ((a + b)^2 - a^2 - b^2) / 2, and a binary variable for each value of a and of a + b makes
  their squares linear.

A placement that was tried also has an effect of its own (`Term.PLACEMENT`). If the
optimum of the program was tried, it is excluded and the program solved again, until no other placement can be
better than the best one that was tried.

Sources: F. Glover, E. Woolsey (1974), for products of binary variables; E. Balas, R. Jeroslow (1972), for the
inequality that excludes one solution. HiGHS solves the program (Q. Huangfu, J. A. J. Hall, 2018).
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from math import comb, fsum, inf

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from search.placement_effects import Effect, IndexedModule, IndexedPlacement, Term, total_weights
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices, list_modules
from search.score_likelihood import Array

FEW = 1000  # largest number of combinations of types with a variable for each
SLACK = 1e-6  # tolerance of the program, in standard deviations of the scores

Row = dict[int, float]  # coefficients by column


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
    """Integer program over the placements of a space.

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
        self._column = {module: i for i, module in enumerate(self.modules)}
        self._rows: list[tuple[Row, float, float]] = []  # with lower and upper bound
        self._objective: list[float] = []
        tried = [placement for placement in dict.fromkeys(tried) if self._includes(placement)]
        alone = [
            total_weights(IndexedPlacement(choices.prefix, (module,)), own=False) for module in self.modules
        ]
        site_pairs = list(combinations(range(choices.sites), 2))
        type_pairs = list(combinations_with_replacement(range(len(choices.types)), 2))
        pairs: list[tuple[Hashable, ...]] = [(choices.prefix, *pair) for pair in site_pairs]
        pairs += [tuple(sorted(choices.types[kind] for kind in pair)) for pair in type_pairs]
        totals = [total_weights(placement) for placement in tried]
        means = model.expect([*alone, *({Effect(Term.PAIR, pair): 1.0} for pair in pairs), *totals])
        of_modules, of_sites, of_types, of_tried = np.split(
            means / model.scale, np.cumsum([len(alone), len(site_pairs), len(type_pairs)])
        )
        self._totals = dict(zip(tried, of_tried.tolist(), strict=True))
        self._add(of_modules)
        by_site, by_type = [Row() for _ in range(choices.sites)], {kind: Row() for kind in choices.types}
        for module, column in self._column.items():
            by_site[module.site][column] = by_type[module.type][column] = 1.0
        for row in by_site:
            self._constrain(row, 0, 1)
        self._constrain(dict.fromkeys(self._column.values(), 1.0), choices.least, choices.most)
        if choices.most > 1:
            self._add_site_pairs(dict(zip(site_pairs, of_sites, strict=True)), by_site)
            self._add_type_pairs(dict(zip(type_pairs, of_types, strict=True)), list(by_type.values()))
        self._program = self._matrix(self._rows)

    def _includes(self, placement: IndexedPlacement) -> bool:
        return (
            (placement.prefix == self.choices.prefix or not placement.modules)
            and self.choices.least <= len(placement.modules) <= self.choices.most
            and all(module in self._column for module in placement.modules)
        )

    def _add(self, objective: Sequence[float] | Array) -> range:
        """Add variables between 0 and 1 with these coefficients. Return their columns."""
        first = len(self._objective)
        self._objective += map(float, objective)
        return range(first, len(self._objective))

    def _constrain(self, row: Row, low: float, high: float) -> None:
        self._rows.append((row, low, high))

    def _add_site_pairs(self, effects: Mapping[tuple[int, int], float], by_site: Sequence[Row]) -> None:
        """Add a variable for each pair of sites: the product of their numbers of modules."""
        least, most = self.choices.least, self.choices.most
        columns = dict(zip(effects, self._add([*effects.values()]), strict=True))
        for (i, j), column in columns.items():
            for site in (i, j):
                self._constrain({column: 1.0, **_scaled(by_site[site], -1)}, -inf, 0)
            self._constrain({column: 1.0, **_scaled(by_site[i], -1), **_scaled(by_site[j], -1)}, -1, inf)
        # Each module forms a pair with all others. These inequalities make the program faster, not smaller.
        for site, row in enumerate(by_site):
            partners = {column: 1.0 for pair, column in columns.items() if site in pair}
            self._constrain({**partners, **_scaled(row, 1 - most)}, -inf, 0)
            self._constrain({**partners, **_scaled(row, 1 - least)}, 0 if least else -inf, inf)

    def _add_type_pairs(self, effects: Mapping[tuple[int, int], float], by_type: Sequence[Row]) -> None:
        """Add variables of the numbers of modules of each type."""
        least, most, types = self.choices.least, self.choices.most, range(len(by_type))
        if comb(most + len(types), most) <= FEW:
            combined = [c for n in range(least, most + 1) for c in combinations_with_replacement(types, n)]
            values = [sum(effects[pair] for pair in combinations(chosen, 2)) for chosen in combined]
            columns = self._add(values)
            self._constrain(dict.fromkeys(columns, 1.0), 1, 1)
            for kind, row in enumerate(by_type):
                self._count(row, {c: chosen.count(kind) for c, chosen in zip(columns, combined, strict=True)})
            return
        numbers = np.arange(most + 1)
        for (a, b), effect in effects.items():
            if a == b:
                others = sum(e for pair, e in effects.items() if a in pair and pair[0] != pair[1])
                squares, row = effect * numbers * (numbers - 1) / 2 - others * numbers**2 / 2, by_type[a]
            else:
                squares, row = effect * numbers**2 / 2, {**by_type[a], **by_type[b]}
            columns = self._add(squares)
            self._constrain(dict.fromkeys(columns, 1.0), 1, 1)
            self._count(row, dict(zip(columns, numbers.tolist(), strict=True)))

    def _count(self, row: Row, numbers: Mapping[int, int]) -> None:
        """Let the variables `numbers`, of which one is 1, give the number of modules in `row`."""
        self._constrain({**_scaled(row, -1), **_scaled(numbers, 1)}, 0, 0)

    def _matrix(self, rows: Sequence[tuple[Row, float, float]]) -> LinearConstraint:
        starts = np.cumsum([0, *(len(row) for row, _, _ in rows)])
        columns = [column for row, _, _ in rows for column in row]
        values = [value for row, _, _ in rows for value in row.values()]
        matrix = csr_array((values, columns, starts), shape=(len(rows), len(self._objective)))
        return LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows])

    def _optimum(
        self,
        objective: Sequence[float] | Array,
        limits: Mapping[str, float],
        excluded: Sequence[IndexedPlacement] = (),
    ) -> tuple[IndexedPlacement, float] | None:
        """Return the placement with the highest objective, which is returned, too, without own effects."""
        rows = []
        for name, limit in limits.items():
            cost = self.costs[name]
            added = np.array([cost.modules[module] for module in self.modules])
            size = float(np.abs(added).max()) or 1.0
            rows.append((dict(enumerate((added / size).tolist())), -inf, (limit - cost.plain) / size))
        for placement in excluded:
            row = dict.fromkeys(self._column.values(), -1.0)
            row.update((self._column[module], 1.0) for module in placement.modules)
            rows.append((row, -inf, len(placement.modules) - 1))
        result = milp(
            -np.asarray(objective),
            integrality=np.ones(len(objective)),
            bounds=Bounds(0, 1),
            constraints=[self._program, *([self._matrix(rows)] if rows else [])],
            options={"mip_rel_gap": 0.0},
        )
        if result.x is None:
            assert result.status == 2, result.message  # infeasible
            return None
        modules = [self.modules[i] for i in np.flatnonzero(result.x[: len(self.modules)] > 0.5)]
        return IndexedPlacement(self.choices.prefix if modules else "", tuple(modules)), -float(result.fun)

    def solve(
        self, limits: Mapping[str, float] | None = None, without: Sequence[IndexedPlacement] = ()
    ) -> IndexedPlacement | None:
        """Return the placement with the highest posterior mean within the limits, or None if there is none.

        `limits` are the largest values of costs, by the names of `costs`. Those `without` are not chosen.
        """
        limits, excluded = limits or {}, [*without]
        allowed = [p for p in self._totals if p not in excluded and self.meets(p, limits)]
        best = max(allowed, key=self._totals.__getitem__, default=None)
        while (optimum := self._optimum(self._objective, limits, excluded)) is not None:
            placement, bound = optimum
            if best is not None and bound <= self._totals[best] + SLACK:
                break
            if placement not in self._totals and self.meets(placement, limits):
                return placement
            excluded.append(placement)
        return best

    def cheapest(self, cost: str, limits: Mapping[str, float] | None = None) -> IndexedPlacement | None:
        """Return the placement with the lowest cost of a name within the limits, or None if there is none."""
        added = np.array([self.costs[cost].modules[module] for module in self.modules])
        objective = np.zeros(len(self._objective))
        objective[: len(added)] = -added / (np.abs(added).max() or 1.0)
        optimum = self._optimum(objective, limits or {})
        return None if optimum is None else optimum[0]

    def front(self, cost: str, limits: Mapping[str, float], points: int) -> list[IndexedPlacement]:
        """Return placements of the Pareto front of posterior mean and a cost, cheapest first.

        Each is the optimum under one of `points` equidistant limits of the cost, from the cheapest placement
        to the best one without a limit on this cost. The limits on the other costs hold for all points.
        """
        value, others = self.costs[cost], {name: limit for name, limit in limits.items() if name != cost}
        cheapest, best = self.cheapest(cost, others), self.solve(others)
        if cheapest is None or best is None:
            return []
        swept = [
            self.solve({**others, cost: limit})
            for limit in np.linspace(value(cheapest), value(best), points)[:-1]
        ]
        front: list[IndexedPlacement] = []
        for placement in [*swept, best]:
            if placement is not None and (not front or value(placement) > value(front[-1])):
                front.append(placement)
        return front

    def meets(self, placement: IndexedPlacement, limits: Mapping[str, float]) -> bool:
        """Return True if no cost of a placement exceeds its limit."""
        return all(self.costs[name](placement) <= limit for name, limit in limits.items())


def _scaled(row: Mapping[int, float], factor: float) -> Row:
    return {column: factor * value for column, value in row.items()}
