"""The probability that more trials would not find a better configuration.

It comes from joint draws of all effects, with variances drawn from their posterior as well. Estimated
variances would make the model too certain: a few trials of each placement hardly separate noise from the
remainders of placements (`PLACEMENT` in `search.placement_model`).

A placement without trials has a remainder that nobody has seen. One remainder is small, but the largest of
hundreds is not, so each draw counts the probability that none is too large. Remainders have Student's t with
3 degrees of freedom: a few placements are much better than their parts. As many more trials as so far can try
at most as many new placements, so only that many, the best ones by each draw, count.

`benchmarks/bench_stopping.py` measures how often an end that follows from this is wrong.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, product
from math import comb

import numpy as np
from scipy.special import stdtr  # importing scipy.stats takes half a second

from search.placement_model import (
    BLOCK,
    IN_BLOCK,
    PLACEMENT,
    EffectModel,
    IndexedModule,
    IndexedPlacement,
    add_earlier,
    is_setting,
    make_matrix,
    total_weights,
)
from search.placement_planner import PlacementChoices, Planner, list_modules
from search.score_likelihood import Array

VARIED, DRAWS = 48, 16  # draws of the variances, and of the effects for each one
DEGREES = 3  # of freedom of remainders without trials
LISTED = 20_000  # placements to list; of larger spaces, a sample


def estimate_reach(
    model: EffectModel, spaces: Sequence[PlacementChoices], margin: float, placement_effect: float
) -> float:
    """Return the probability that no configuration gains more than `margin` above the best trial.

    Args:
        model: The model of the scores.
        spaces: The placements to choose from.
        margin: The smallest difference that matters, in units of the score.
        placement_effect: The probability that placements make any difference.
    """
    random = np.random.default_rng(0)
    means = model.select(lambda effect: effect.term not in (BLOCK, IN_BLOCK)) @ model.mean
    best = int(np.argmax(means))
    settings = model.select(is_setting)
    tried, of_tried = model.tried
    of_best = tried.index(model.placement_of(best))
    varied = model.vary(random, VARIED)
    known = set(tried)
    untried = [p for p in _placements(spaces, [m for m, _ in varied], random) if p not in known]
    sums = add_earlier([total_weights(placement, own=False) for placement in untried], model.prior)
    new = dict.fromkeys(effect for effects in sums for effect in effects if effect not in model.columns)
    of_untried = make_matrix(sums, {effect: i for i, effect in enumerate([*model.columns, *new])})
    count = min(len(untried), means.size)  # of placements that as many more trials could try
    by_placement = by_settings = 0.0
    for variant, weight in varied:
        values = variant.draw_values(random, DRAWS)
        deviations = np.sqrt([variant.variance(effect.term) for effect in new])
        unseen = deviations[:, None] * random.standard_normal((len(new), DRAWS))
        gains = settings @ values
        of_settings = gains.max(axis=0) - gains[best]
        totals = of_tried @ values
        lead = totals[of_best] + margin / model.scale - of_settings  # over it, a placement is better
        none = np.where(totals.max(axis=0) > lead, 0.0, 1.0)
        if count:
            short = lead - of_untried @ np.concatenate([values, unseen])
            nearest = np.partition(short, count - 1, axis=0)[:count]
            none *= _none_above(nearest / np.sqrt(variant.variance(PLACEMENT)))
        by_placement += weight * float(1 - none.mean())
        by_settings += weight * float((of_settings > margin / model.scale).mean())
    return 1 - placement_effect * by_placement - (1 - placement_effect) * by_settings


def _placements(
    spaces: Sequence[PlacementChoices], models: Sequence[EffectModel], random: np.random.Generator
) -> list[IndexedPlacement]:
    """Return the placements of all spaces, or a sample with the best one by a draw of each model."""
    result: dict[IndexedPlacement, None] = {}
    for choices in spaces:
        if sum(_numbers(choices)) * len(spaces) <= LISTED:
            result |= dict.fromkeys(_all(choices))
            continue
        result |= dict.fromkeys(_sample(choices, LISTED // len(spaces), random))
        result |= dict.fromkeys(Planner(model.draw(random), choices).best([], random) for model in models)
    return list(result)


def _modules_of_sites(choices: PlacementChoices) -> list[list[IndexedModule]]:
    modules = sorted(list_modules(choices), key=lambda module: module.site)
    return [list(of_site) for _, of_site in groupby(modules, key=lambda module: module.site)]


def _numbers(choices: PlacementChoices) -> list[int]:
    """Return the number of placements with each number of modules, from the smallest."""
    at_site = len(list(list_modules(choices))) // choices.sites
    return [comb(choices.sites, count) * at_site**count for count in range(choices.least, choices.most + 1)]


def _all(choices: PlacementChoices) -> Iterator[IndexedPlacement]:
    at_site = _modules_of_sites(choices)
    for count in range(choices.least, choices.most + 1):
        for sites in combinations(at_site, count):
            yield from (_placement(choices, modules) for modules in product(*sites))


def _sample(choices: PlacementChoices, size: int, random: np.random.Generator) -> Iterator[IndexedPlacement]:
    """Yield placements that are drawn with equal probability, with repetitions."""
    at_site, numbers = _modules_of_sites(choices), np.array(_numbers(choices), float)
    for count in random.choice(len(numbers), size, p=numbers / numbers.sum()) + choices.least:
        sites = sorted(random.choice(choices.sites, count, replace=False))
        modules = tuple(at_site[site][random.integers(len(at_site[site]))] for site in sites)
        yield _placement(choices, modules)


def _placement(choices: PlacementChoices, modules: tuple[IndexedModule, ...]) -> IndexedPlacement:
    return IndexedPlacement(choices.prefix if modules else "", modules)


def _none_above(thresholds: Array) -> Array:
    """Return the probability that no remainder is above its threshold, in standard deviations.

    `thresholds` are `(placements, draws)`.
    """
    scale = np.sqrt(DEGREES / (DEGREES - 2))  # the standard deviation of Student's t
    result: Array = np.prod(stdtr(DEGREES, scale * thresholds), axis=0)
    return result
