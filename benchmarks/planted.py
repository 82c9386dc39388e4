"""Generate tables of placements with known effects, which trainings show with noise.

The effect of a placement [points] is the sum over its modules of site + type + site x type. In some tables
each pair of modules has an effect, too, without a structure that a model could share. A training adds noise
of 1.1 points, about that of `nette.py`'s trainings from scratch. After a fraction of its epochs, a training
shows that fraction of its effect and noise, plus temporary noise, so that the noise always has the same
variance. Each repetition of a benchmark draws new effects.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import optuna
from reliability import Reliability, reliability

from search import choices
from search.placement_effects import IndexedModule, IndexedPlacement

TYPES = ("ssa", "ssa-sym", "sagan", "decomposed", "multihead", "conv1x1")
NOISE = 1.1
SEEDS = 6  # of the table whose reliability is reported


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Kind of table: its space, and the size of effects.

    Attributes:
        sd: Standard deviation of the effects of sites, of types and of both together.
        pairs: Standard deviation of the effects of pairs of modules.
        heavy: True if effects have Student's t with 3 degrees of freedom, with the same standard deviation.
        settings: True if hyperparameters are drawn, too, and have effects.
    """

    name: str
    says: str
    sites: int = 4
    most: int = 2
    sd: float = 0.5
    pairs: float = 0.0
    heavy: bool = False
    settings: bool = False


KINDS = {
    kind.name: kind
    for kind in (
        Kind(name="light", says="241 placements, Gaussian effects"),
        Kind(name="heavy", says="241 placements, heavy tails", heavy=True),
        Kind(name="pairs", says="241 placements, effects of pairs", pairs=0.5),
        Kind(
            name="heavy-pairs", says="241 placements, heavy tails and effects of pairs", heavy=True, pairs=0.5
        ),
        Kind(
            name="large", says="50,041 placements of up to three modules, Gaussian effects", sites=12, most=3
        ),
        Kind(name="settings", says="241 placements, Gaussian effects, and hyperparameters", settings=True),
        Kind(name="nothing", says="241 placements without effects", sd=0.0),
    )
}


class Table:
    """Table of planted effects.

    Attributes:
        best: Effect of the best placement, with the best hyperparameters [points].
        spread: Variance of placements of this kind [points squared].
        noise: Standard deviation of one training [points].
    """

    noise = NOISE

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.spread = kind.most * 3 * kind.sd**2 + kind.pairs**2
        self._noise = np.random.default_rng([seed, 1])
        random = np.random.default_rng(seed)

        def draw_effects(sd: float, *shape: int) -> np.ndarray:
            drawn = random.standard_t(3, shape) / 3**0.5 if kind.heavy else random.standard_normal(shape)
            return sd * drawn

        types = len(TYPES)
        of_sites, of_types = draw_effects(kind.sd, kind.sites, 1), draw_effects(kind.sd, 1, types)
        self._cells = of_sites + of_types + draw_effects(kind.sd, kind.sites, types)  # (sites, types)
        self._pairs = draw_effects(kind.pairs, kind.sites, types, kind.sites, types)
        self._optimum = random.uniform(0.2, 0.8, 2)
        self._better = random.integers(2)
        self.best = max(float(effects.max()) for _, effects in self._effects())

    def effect(self, placement: IndexedPlacement) -> float:
        """Return the gain over the backbone without attention [points]."""
        cells = [(module.site, TYPES.index(module.type)) for module in placement.modules]
        single = sum(self._cells[cell] for cell in cells)
        return float(single + sum(self._pairs[left + right] for left, right in combinations(cells, 2)))

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        return draw(trial, self.kind)

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        """Return the final score of a training."""
        return self.train(placement, params)(1.0)

    def train(self, placement: IndexedPlacement, params: dict[str, float | str]) -> Callable[[float], float]:
        """Return a function from a fraction of the epochs to the score of a new training."""
        effect, noise = self.effect(placement) - self.loss(params), self._noise.standard_normal()

        def score(fraction: float) -> float:
            temporary = self._noise.standard_normal() if fraction < 1 else 0.0
            return float(
                fraction * effect + NOISE * (fraction * noise + (1 - fraction**2) ** 0.5 * temporary)
            )

        return score

    def audit(self) -> Reliability:
        """Return the reliability of a table with SEEDS scores of each placement, of at most 2,000."""
        random = np.random.default_rng(0)
        effects = np.array([effect for _, effect in self.placements()])
        if len(effects) > 2000:
            effects = random.choice(effects, 2000, replace=False)
        return reliability(effects[:, None] + NOISE * random.standard_normal((len(effects), SEEDS)))

    def loss(self, params: dict[str, float | str]) -> float:
        """Return the points lost by hyperparameters, if the space draws any."""
        if not self.kind.settings:
            return 0.0
        rate = np.log(float(params["learning_rate"]) / 3e-4) / np.log(100)  # 0 to 1, as weight decay below
        decay = np.log(float(params["weight_decay"]) / 1e-4) / np.log(3000)
        other = params["schedule"] != ("one-cycle", "flat-cosine")[self._better]
        return float(8 * (rate - self._optimum[0]) ** 2 + 2 * (decay - self._optimum[1]) ** 2 + 0.7 * other)

    def _effects(self) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """Yield each combination of sites with the effects of its placements, an axis of types per module."""
        for count in range(self.kind.most + 1):
            for sites in combinations(range(self.kind.sites), count):
                total = np.zeros((len(TYPES),) * count)
                for axis, site in enumerate(sites):
                    total = total + _along(self._cells[site], [axis], count)
                for (i, left), (j, right) in combinations(enumerate(sites), 2):
                    total = total + _along(self._pairs[left, :, right, :], [i, j], count)
                yield sites, total

    def placements(self) -> list[tuple[IndexedPlacement, float]]:
        """Return all placements with their effects."""
        result = []
        for sites, effects in self._effects():
            for kinds in product(range(len(TYPES)), repeat=len(sites)):
                modules = tuple(
                    IndexedModule(site, TYPES[kind]) for site, kind in zip(sites, kinds, strict=True)
                )
                result.append((IndexedPlacement("", modules), float(effects[kinds])))
        return result


def _along(values: np.ndarray, axes: Sequence[int], count: int) -> np.ndarray:
    """Return `values` with `count` dimensions; its own dimensions become `axes`."""
    shape = [1] * count
    for axis in axes:
        shape[axis] = len(TYPES)
    return values.reshape(shape)


def draw(trial: optuna.Trial, kind: Kind) -> IndexedPlacement:
    """Draw a placement from the space of a table."""
    modules = tuple(
        IndexedModule(site, trial.suggest_categorical(f"{choices.TYPE}{i}", TYPES))
        for i, site in enumerate(choices.ascending(trial, kind.sites, most=kind.most), start=1)
    )
    if kind.settings:
        trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True)
        trial.suggest_float("weight_decay", 1e-4, 3e-1, log=True)
        trial.suggest_categorical("schedule", ["one-cycle", "flat-cosine"])
        trial.suggest_categorical("batch_size", [32, 64, 128])  # has no effect
        trial.suggest_float("mixup", 0.0, 0.4, step=0.1)  # has no effect
    return IndexedPlacement("", modules)
