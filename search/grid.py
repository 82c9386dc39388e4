"""Grids: the cells of a space, every combination of its choices in order, and the spaces of published tables.

The cells of such a space are the rows of the table, for `--sampler grid`. Each space has a small form, whose
name ends in `-small`, on data that come with the package. `automl studies` lists them, and `automl study`
shows their results beside the published figures. The grids of a task are in its `study`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from attention.options import OptionValue
from attention.spec import Spec
from automl.base.errors import InputError
from search.config import TrialConfig
from search.space import Space, memory_study

MOST_CELLS = 10_000


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Combination of choices.

    Attributes:
        label: The parameters as text, unique in the grid: `attention=decomposed, count=5`.
    """

    label: str
    params: Mapping[str, Any]
    distributions: Mapping[str, BaseDistribution]
    config: TrialConfig


def grid_cells(space: Space) -> list[Cell]:
    """List the cells of a space. The last choice varies fastest.

    The space is walked as a tree, since a parameter may depend on earlier choices. Combinations that the
    space rejects (TrialPruned) are left out, as are those with other values than its `candidate`. Raises
    InputError if a parameter has infinitely many values, or the space has no cell or more than MOST_CELLS.
    """
    walk = _Walk(space.name)
    study = memory_study(walk)
    cells: list[Cell] = []
    for _ in range(MOST_CELLS):
        trial = study.ask()
        try:
            config = space(trial)
        except optuna.TrialPruned:
            pass
        else:
            params, kinds = dict(trial.params), dict(trial.distributions)
            text = ", ".join(f"{name}={value}" for name, value in params.items()) or "the only cell"
            if {**params, **space.candidate} == params:
                cells.append(Cell(label=text, params=params, distributions=kinds, config=config))
        if not walk.advance():
            if not cells:
                raise InputError(f"space {space.name!r} rejected all its combinations (TrialPruned)")
            if len({cell.label for cell in cells}) < len(cells):  # such as those of 1 and "1"
                cells = [replace(c, label=f"{c.label} #{number}") for number, c in enumerate(cells, start=1)]
            return cells
    raise InputError(
        f"--sampler grid takes at most {MOST_CELLS:,} combinations; space {space.name!r} has more. Use "
        f"another sampler"
    )


class _Walk(RandomSampler):
    """Depth-first walk through the tree of a space's choices."""

    def __init__(self, space: str) -> None:
        super().__init__()
        self.space = space
        # The values of each choice, and the index of the current one.
        self.path: list[tuple[Sequence[Any], int]] = []
        self.depth = 0  # in the current combination

    def advance(self) -> bool:
        """Go to the next combination. Return False if there is none."""
        del self.path[self.depth :]
        self.depth = 0
        while self.path:
            values, index = self.path.pop()
            if index + 1 < len(values):
                self.path.append((values, index + 1))
                return True
        return False

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self.depth == len(self.path):
            self.path.append((self._values(param_name, param_distribution), 0))
        values, index = self.path[self.depth]
        self.depth += 1
        return values[index]

    def _values(self, name: str, kind: BaseDistribution) -> Sequence[Any]:
        if values := list_values(kind):
            return values
        raise InputError(
            f"--sampler grid needs finitely many choices; {name} of space {self.space!r} has no step. Use "
            f"another sampler, or set a step."
        )


def list_values(kind: BaseDistribution) -> Sequence[Any]:
    """Return the values of a parameter, or nothing for a continuous range."""
    if isinstance(kind, CategoricalDistribution):
        return kind.choices
    if isinstance(kind, IntDistribution):
        return range(kind.low, kind.high + 1, kind.step)
    assert isinstance(kind, FloatDistribution)
    if kind.step is None:
        return ()
    count = int((kind.high - kind.low) / kind.step + 1e-8) + 1
    return [kind.low + i * kind.step for i in range(count)]


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
