"""Effects that earlier searches estimated, for the prior of a new search's model of placements.

Effects of types, their options and their pairs keep their names. Those of sites depend on the depth of a site
in its backbone, from 0 to 1. Between the sites of the earlier backbone they are interpolated linearly.
Effects of pairs of sites are left out.

A study holds them as an attribute, so that later readers do not need the earlier searches.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import numpy as np
from optuna.distributions import IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial

from automl.base.errors import InputError
from automl.base.serialise import read_value
from search import choices
from search.placement_effects import Effect, IndexedPlacement, Prior, Term
from search.placement_model import EffectModel

ATTRIBUTE = "prior"  # of a study

# A row of the attribute: term, key and value of an effect.
Rows = list[tuple[str, list[str | int | float | bool | None], float]]


def count_sites(trials: Iterable[FrozenTrial | Trial]) -> dict[str, int]:
    """Return the number of sites of each prefix, from the ranges of the sites of trials with modules."""
    counts = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            parameter = choices.parse_parameter(name)
            if parameter is None or parameter.kind != choices.SITE:
                continue
            if isinstance(distribution, IntDistribution):
                # Sites are drawn in ascending order, so each leaves room for those of the later modules.
                later = trial.params[choices.MODULES] - parameter.module
                counts[parameter.prefix] = distribution.high + 1 + later
    return counts


def transfer_effects(
    model: EffectModel, earlier: Mapping[str, int], sites: Mapping[str, int]
) -> dict[Effect, float]:
    """Return the effects of an earlier search, at the sites of a new one.

    `earlier` and `sites` are the numbers of sites of both by their prefix. Returns posterior means, in units
    of the standard deviation of the earlier scores.
    """
    kept = [
        effect
        for effect in model.columns
        if effect.term in (Term.COST, Term.TYPE, Term.OPTION)
        or (effect.term == Term.PAIR and isinstance(effect.key, tuple) and len(effect.key) == 2)  # of types
    ]
    types = [effect.key for effect in model.columns if effect.term == Term.TYPE]
    result = dict(zip(kept, _means(model, kept), strict=True))
    for prefix, count in sites.items():
        similar = prefix if prefix in earlier else max(earlier, key=lambda name: _uses(model, name))
        depths = np.linspace(0, 1, count)
        for term, key in [(Term.SITE, ()), *((Term.CELL, (kind,)) for kind in types)]:
            means = _means(model, [Effect(term, (similar, i, *key)) for i in range(earlier[similar])])
            values = np.interp(depths, np.linspace(0, 1, len(means)), means)
            result |= {Effect(term, (prefix, i, *key)): float(mean) for i, mean in enumerate(values)}
    return result


def _uses(model: EffectModel, prefix: str) -> int:
    """Return the number of modules of a model's trials at sites with this prefix."""
    return sum(
        model.count(effect)
        for effect in model.columns
        if effect.term == Term.SITE and isinstance(effect.key, tuple) and effect.key[0] == prefix
    )


def _means(model: EffectModel, effects: list[Effect]) -> list[float]:
    values: list[float] = (model.expect([{effect: 1.0} for effect in effects]) / model.scale).tolist()
    return values


def signal_effects(
    harm: Sequence[Mapping[str, float]], placements: Iterable[IndexedPlacement]
) -> dict[Effect, float]:
    """Return effects that a signal of `search.choices.SIGNALS` predicts.

    Args:
        harm: The harm of each type, by site.
        placements: Placements of the space. Their predicted scores have a standard deviation of 1.
    """
    placements = list(placements)
    sums = [sum(harm[module.site][module.type] for module in each.modules) for each in placements]
    scale = float(np.std(sums)) if sums else 0.0
    return {
        Effect(Term.CELL, (prefix, site, kind)): -value / (scale or 1.0)
        for prefix in {each.prefix for each in placements}
        for site, by_kind in enumerate(harm)
        for kind, value in by_kind.items()
    }


def write_prior(study: Study, prior: Prior) -> None:
    """Write the effects of earlier searches to a study."""
    rows = {
        name: [
            [str(effect.term), list(effect.key) if isinstance(effect.key, tuple) else [effect.key], value]
            for effect, value in effects.items()
        ]
        for name, effects in prior.items()
    }
    study.set_user_attr(ATTRIBUTE, rows)


def read_prior(study: Study) -> Prior:
    """Return the effects of earlier searches in a study, mostly none. Raises InputError if damaged."""
    problems: list[str] = []
    value = read_value(dict[str, Rows], study.user_attrs.get(ATTRIBUTE, {}), ATTRIBUTE, problems)
    if problems or not all(isfinite(number) for rows in value.values() for *_, number in rows):
        raise InputError("; ".join(problems) or f"{ATTRIBUTE} must hold finite numbers")
    return {
        name: {Effect(term, key[0] if len(key) == 1 else tuple(key)): number for term, key, number in rows}
        for name, rows in value.items()
    }


def describe_coefficients(coefficients: Mapping[str, tuple[float, float, float]]) -> str:
    """Return the coefficients of earlier searches with their intervals, as text."""
    return ", ".join(
        f"{name} counts {mean:.2f} ({low:.2f} to {high:.2f})"
        for name, (mean, low, high) in coefficients.items()
    )
