"""The probability that further trials would not find a better configuration.

It comes from joint draws of all effects, with variances drawn from their posterior as well. Estimated
variances would make the model too certain: a few trials of each placement hardly separate noise from the
remainders of placements (`Term.PLACEMENT`).

A placement without trials has a remainder that nobody has seen. One remainder is small, but the largest of
hundreds is not, so each draw counts the probability that none is too large. Remainders have Student's t with
3 degrees of freedom: a few placements are much better than their parts. N further trials can try at most N
placements, so only N, the best ones by each draw, count; of a space of more than `LISTED`, the best ones of a
sample. Hyperparameters are those that were tried.

`benchmarks/bench_stopping.py` measures how often an end that follows from this is wrong.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, product
from math import comb

import numpy as np
from scipy.special import stdtr  # importing scipy.stats takes half a second

from search.placement_effects import (
    IndexedModule,
    IndexedPlacement,
    Term,
    add_coefficient,
    is_setting,
    make_matrix,
    total_weights,
)
from search.placement_model import EffectModel
from search.placement_planner import PlacementChoices, Planner, list_modules

VARIED, DRAWS = 200, 4  # draws of the variances, and of the effects for each one
LEAST = 0.9  # below it, a bound is enough
DEGREES = 3  # of freedom of remainders without trials
LISTED = 10_000  # largest number of placements that are listed; of more, a sample
OPTIMA = 12  # draws whose best placements are added to a sample, each with its neighbours


def estimate_reach(
    model: EffectModel,
    spaces: Sequence[PlacementChoices],
    best: int,
    more: int,
    margin: float,
    placement_effect: float,
) -> float:
    """Return the probability that no configuration gains more than `margin` above the best trial.

    If it is below `LEAST`, an upper bound below `LEAST` is returned.

    Args:
        model: The model of the scores.
        spaces: The placements to choose from. 0 is returned if there are none, as they are unknown then.
        best: The index of the best trial.
        more: The number of further trials.
        margin: The smallest difference that matters, in units of the score.
        placement_effect: The probability that placements make any difference.
    """
    if not spaces:
        return 0.0
    random = np.random.default_rng(0)
    settings = model.select(is_setting)
    tried, of_tried = model.tried
    best_row = tried.index(model.placement_of(best))
    known = set(tried)
    untried = [placement for placement in list_placements(spaces, model, random) if placement not in known]
    sums = add_coefficient([total_weights(placement, own=False) for placement in untried], model.prior)
    unseen = list(dict.fromkeys(e for effects in sums for e in effects if e not in model.columns))
    of_untried = make_matrix(sums, {effect: i for i, effect in enumerate([*model.columns, *unseen])})
    count = min(len(untried), more)
    by_placement = by_settings = 0.0
    for variant, weight in model.vary(random, VARIED):
        values = variant.draw_values(random, DRAWS)
        deviations = np.sqrt([variant.variance(effect.term) for effect in unseen])
        extended = np.concatenate(
            [values, deviations[:, None] * random.standard_normal((len(unseen), DRAWS))]
        )
        setting_totals = settings @ values
        setting_gains = setting_totals.max(axis=0) - setting_totals[best]
        totals = of_tried @ values
        bar = totals[best_row] + margin / model.scale - setting_gains  # above it, a placement is better
        within = np.where(totals.max(axis=0) > bar, 0.0, 1.0)  # probability that no placement is better
        if count:
            distances = np.partition(bar - of_untried @ extended, count - 1, axis=0)[:count]
            # The remainders of placements follow Student's t, with the variance of the model.
            scale = np.sqrt(DEGREES / (DEGREES - 2) / variant.variance(Term.PLACEMENT))
            within *= np.prod(stdtr(DEGREES, scale * distances), axis=0)
        by_placement += weight * float(1 - within.mean())
        by_settings += weight * float((setting_gains > margin / model.scale).mean())
        reach = 1 - placement_effect * by_placement - (1 - placement_effect) * by_settings
        if reach < LEAST:  # more draws can only lower it
            break
    return reach


def list_placements(
    spaces: Sequence[PlacementChoices], model: EffectModel, random: np.random.Generator
) -> list[IndexedPlacement]:
    """Return all placements of spaces, or a sample with the best ones by some draws and their neighbours."""
    listed: dict[IndexedPlacement, None] = {}
    for choices in spaces:
        if sum(count_placements(choices)) * len(spaces) <= LISTED:
            listed |= dict.fromkeys(enumerate_placements(choices))
            continue
        listed |= dict.fromkeys(sample_placements(choices, LISTED // len(spaces), random))
        for variant, _ in model.vary(random, OPTIMA):
            optimum = Planner(variant.draw(random), choices).best([], random)
            listed |= dict.fromkeys([optimum, *list_neighbours(choices, optimum)])
    return list(listed)


def count_placements(choices: PlacementChoices) -> list[int]:
    """Return the number of placements with each number of modules, from the smallest."""
    at_site = len(list(list_modules(choices))) // choices.sites
    return [comb(choices.sites, count) * at_site**count for count in range(choices.least, choices.most + 1)]


def enumerate_placements(choices: PlacementChoices) -> Iterator[IndexedPlacement]:
    """Yield all placements."""
    at_site = _modules_of_sites(choices)
    for count in range(choices.least, choices.most + 1):
        for sites in combinations(at_site, count):
            yield from (_placement(choices, modules) for modules in product(*sites))


def sample_placements(
    choices: PlacementChoices, size: int, random: np.random.Generator
) -> Iterator[IndexedPlacement]:
    """Yield placements that are drawn with equal probability, with repetitions."""
    at_site, numbers = _modules_of_sites(choices), np.array(count_placements(choices), float)
    for count in random.choice(len(numbers), size, p=numbers / numbers.sum()) + choices.least:
        sites = sorted(random.choice(choices.sites, count, replace=False))
        modules = tuple(at_site[site][random.integers(len(at_site[site]))] for site in sites)
        yield _placement(choices, modules)


def list_neighbours(choices: PlacementChoices, placement: IndexedPlacement) -> Iterator[IndexedPlacement]:
    """Yield the placements that differ in one module."""
    for i in range(len(placement.modules)):
        others = placement.modules[:i] + placement.modules[i + 1 :]
        taken = {module.site for module in others}
        for module in list_modules(choices):
            if module.site not in taken:
                yield _placement(choices, tuple(sorted([*others, module], key=lambda module: module.site)))


def _modules_of_sites(choices: PlacementChoices) -> list[list[IndexedModule]]:
    return [list(of_site) for _, of_site in groupby(list_modules(choices), key=lambda module: module.site)]


def _placement(choices: PlacementChoices, modules: tuple[IndexedModule, ...]) -> IndexedPlacement:
    return IndexedPlacement(choices.prefix if modules else "", modules)
