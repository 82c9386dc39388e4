"""The prior mean of a search's model of placements: effects that were measured before its first trial."""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

import numpy as np
from optuna.study import Study

from automl.base.errors import InputError
from automl.base.serialise import read_value
from search.placement_effects import NO_PRIOR, Effect, IndexedPlacement, Prior, Term

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
