"""Grids of studies: spaces whose cells are the rows of published tables, for `--sampler grid`.

Each has a small form, whose name ends in `-small`, on data that come with the package. `automl studies`
lists them, and `automl study` shows their results beside the published figures. The grids of a task are in
its `study`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from search.config import TrialConfig
from search.space import Space

Draw = Callable[[optuna.Trial], TrialConfig]

SMALL = "-small"  # suffix of a small form
DECOMPOSED: Mapping[str, OptionValue] = {"normalisation": "softmax", "heads": 1}


def decomposed(sites: Sequence[str]) -> dict[str, Spec]:
    """Return a placement of decomposed attention (arXiv 1812.01243) with one head."""
    return {site: Spec("decomposed", dict(DECOMPOSED)) for site in sites}


def grid(name: str, draw: Draw, reference: Mapping[str, Any]) -> Space:
    """Return the space of a grid. `reference` is the cell that the other cells are compared with."""
    as_baseline = partial(_as_reference, draw, reference)
    return Space(
        name=name, draw=draw, baseline=reference, plain=reference, as_baseline=as_baseline, summary=name
    )


def _as_reference(draw: Draw, reference: Mapping[str, Any], config: TrialConfig) -> TrialConfig:
    """Return a configuration with the reference's model and its own hyperparameters."""
    model = draw(optuna.trial.FixedTrial(dict(reference))).model  # type: ignore[arg-type]
    weights, digest = config.model.weights, config.model.weights_digest
    return replace(config, model=replace(model, weights=weights, weights_digest=digest))
