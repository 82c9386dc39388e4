"""The effects that add up to the score of a placement, their weights in sums, and effects measured before.

`search.placement_model` states the model.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial
from scipy.sparse import csr_array

from automl.base.errors import InputError
from automl.base.serialise import read_value
from search.choices import MODULES, NO_TYPE, SITE, TYPE, parse_parameter

Array = NDArray[np.float64]
Matrix = Any  # scipy.sparse.csr_array has no types

SETTING = "setting:"  # a further term, followed by the name of the hyperparameter
CURVE = 3  # number of cosines in a curve
NOISE = "noise"


class Term(StrEnum):
    """Term of the model."""

    INTERCEPT = "intercept"
    COST = "cost"
    SITE = "site"
    TYPE = "type"
    CELL = "site x type"
    OPTION = "option"
    PAIR = "pair"
    PLACEMENT = "placement"
    COEFFICIENT = "coefficient"


# Priors of the logarithm of each variance, relative to the variance of the scores: median and standard
# deviation. They are broad, so that twenty trials overrule them. Terms with more effects start smaller.
PRIORS: Mapping[str, tuple[float, float]] = {
    Term.COST: (0.1, 1.5),
    Term.SITE: (0.1, 1.5),
    Term.TYPE: (0.1, 1.5),
    Term.CELL: (0.1, 1.5),
    Term.OPTION: (0.02, 1.5),
    Term.PAIR: (0.01, 1.5),
    Term.PLACEMENT: (0.01, 1.5),
    Term.COEFFICIENT: (0.4, 1.5),  # around its mean
    NOISE: (0.5, 1.0),
}
PRIOR_OF_SETTINGS = (0.1, 1.5)
MEAN_COEFFICIENT = 0.5  # before any score: a signal counts half


class IndexedModule(NamedTuple):
    """Module at a site, with its options as pairs of a name and a value."""

    site: int
    type: str
    options: tuple[tuple[str, Hashable], ...] = ()


class IndexedPlacement(NamedTuple):
    """Modules in ascending order of their sites, which are indices among those with the same `prefix`."""

    prefix: str
    modules: tuple[IndexedModule, ...]


class Effect(NamedTuple):
    """Name of an effect: its term, and a key within the term."""

    term: str
    key: Hashable = ()


Weights = dict[Effect, float]
Prior = Mapping[Effect, float]  # effects that were measured before the first trial
NO_PRIOR: Prior = MappingProxyType({})


def placement_weights(placement: IndexedPlacement) -> Weights:
    """Return how often each effect occurs in a placement's score."""
    counts: defaultdict[Effect, float] = defaultdict(float)
    prefix, modules = placement
    counts[Effect(Term.INTERCEPT)] = 1.0
    for i, (site, kind, options) in enumerate(modules):
        counts[Effect(Term.COST)] += 1
        counts[Effect(Term.SITE, (prefix, site))] += 1
        counts[Effect(Term.TYPE, kind)] += 1
        counts[Effect(Term.CELL, (prefix, site, kind))] += 1
        for name, value in options:
            counts[Effect(Term.OPTION, (kind, name, value))] += 1
        for other in modules[:i]:
            counts[Effect(Term.PAIR, (prefix, other.site, site))] += 1
            counts[Effect(Term.PAIR, tuple(sorted((other.type, kind))))] += 1
    counts[Effect(Term.PLACEMENT, placement)] = 1.0
    return dict(counts)


def total_weights(placement: IndexedPlacement, *, own: bool = True) -> Weights:
    """Return the weights of a placement's score relative to the intercept, with its remainder if `own`."""
    dropped = (Term.INTERCEPT,) if own else (Term.INTERCEPT, Term.PLACEMENT)
    return {effect: w for effect, w in placement_weights(placement).items() if effect.term not in dropped}


def add_coefficient(sums: Sequence[Weights], prior: Prior) -> Sequence[Weights]:
    """Return sums of effects with the coefficient of the prior, weighted by what the prior predicts."""
    if not prior:
        return sums
    predicted = [sum(weight * prior.get(e, 0.0) for e, weight in effects.items()) for effects in sums]
    return [
        {Effect(Term.COEFFICIENT): value} | effects for value, effects in zip(predicted, sums, strict=True)
    ]


def is_setting(effect: Effect) -> bool:
    """Return True for an effect of a hyperparameter."""
    return effect.term.startswith(SETTING)


def curve_weights(name: str, x: float) -> Weights:
    """Return the weights of a numeric hyperparameter at `x`, a fraction of its range: a smooth curve."""
    return {Effect(SETTING + name, k): float(np.cos(np.pi * k * x)) / k for k in range(1, CURVE + 1)}


def parse_placement(
    params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution] | None = None
) -> IndexedPlacement | None:
    """Return the placement of a trial's parameters, or None if it is missing or incomplete.

    Options with a range of numbers, of a user-defined type, are left out where `distributions` are given.
    """
    if MODULES not in params:
        return None
    distributions = distributions or {}
    prefixes, sites, types = dict[int, str](), dict[int, int](), dict[int, str]()
    options: defaultdict[int, list[tuple[str, Hashable]]] = defaultdict(list)
    for name, value in params.items():
        parameter = parse_parameter(name)
        if parameter is None:
            continue
        if parameter.kind == SITE:
            prefixes[parameter.module], sites[parameter.module] = parameter.prefix, value
        elif parameter.kind == TYPE:
            types[parameter.module] = value
        elif name not in distributions or isinstance(distributions[name], CategoricalDistribution):
            options[parameter.module].append((parameter.kind, value))
    numbers = range(1, params[MODULES] + 1)
    if any(i not in sites for i in numbers):
        return None
    modules = [IndexedModule(sites[i], types.get(i, NO_TYPE), tuple(sorted(options[i]))) for i in numbers]
    return IndexedPlacement(prefixes[1] if modules else "", tuple(modules))


def trial_weights(trial: FrozenTrial) -> Weights | None:
    """Return the weights of all effects in a trial's score, or None without a placement."""
    placement = parse_placement(trial.params, trial.distributions)
    if placement is None:
        return None
    effects = placement_weights(placement)
    for name, value in trial.params.items():
        if parse_parameter(name) is None:
            effects.update(setting_weights(name, value, trial.distributions[name]))
    return effects


def setting_weights(name: str, value: Any, distribution: Any) -> Weights:
    if isinstance(distribution, CategoricalDistribution):
        return {Effect(SETTING + name, value): 1.0}
    low, high, x = distribution.low, distribution.high, value
    if low == high:
        return {}
    if distribution.log:
        low, high, x = np.log(low), np.log(high), np.log(x)
    return curve_weights(name, float((x - low) / (high - low)))


def make_matrix(sums: Sequence[Weights], columns: Mapping[Effect, int]) -> Matrix:
    """Return the weights of effects in sums, `(sums, columns)`."""
    ends = np.cumsum([0, *map(len, sums)])
    values = [weight for effects in sums for weight in effects.values()]
    indices = [columns[effect] for effects in sums for effect in effects]
    return csr_array((values, indices, ends), shape=(len(sums), len(columns)), dtype=float)


def prior_of(term: str) -> tuple[float, float]:
    """Return the median and the spread of the prior of a term's variance, as in `PRIORS`."""
    return PRIORS.get(term, PRIOR_OF_SETTINGS)


def prior_mean(term: str) -> float:
    """Return the prior mean of the effects of a term."""
    return MEAN_COEFFICIENT if term == Term.COEFFICIENT else 0.0


ATTRIBUTE = "sensitivity"  # of a study

Rows = list[tuple[tuple[str, int, str], float]]  # an effect of a prefix, a site and an attention type


def sensitivity_effects(harm: Sequence[Mapping[str, float]], placements: Iterable[IndexedPlacement]) -> Prior:
    """Return the effects that the sensitivity of layers predicts.

    Empty if it has other sites or types than the placements, or is not finite.

    Args:
        harm: The harm of each type, by site.
        placements: Placements of the space. Their predicted scores have a standard deviation of 1.
    """
    placements = list(placements)
    known = {(site, kind): value for site, by_kind in enumerate(harm) for kind, value in by_kind.items()}
    cells = [[(module.site, module.type) for module in each.modules] for each in placements]
    if not all(map(isfinite, known.values())) or not known.keys() >= {cell for row in cells for cell in row}:
        return NO_PRIOR
    scale = float(np.std([sum(map(known.__getitem__, row)) for row in cells])) if cells else 0.0
    return {
        Effect(Term.CELL, (prefix, site, kind)): -value / (scale or 1.0)
        for prefix in {each.prefix for each in placements}
        for (site, kind), value in known.items()
    }


def write_prior(study: Study, prior: Prior) -> None:
    """Write effects of modules to a study."""
    study.set_user_attr(ATTRIBUTE, [(effect.key, value) for effect, value in prior.items()])


def read_prior(study: Study) -> Prior:
    """Return the effects in a study, mostly none. Raises InputError if they are damaged."""
    problems: list[str] = []
    rows = read_value(Rows, study.user_attrs.get(ATTRIBUTE, []), ATTRIBUTE, problems)
    if problems or not all(isfinite(value) for _, value in rows):
        raise InputError("; ".join(problems) or f"{ATTRIBUTE} must hold finite numbers")
    return {Effect(Term.CELL, key): value for key, value in rows}
