"""Planted tables of placements: what each is worth is known, and a training shows it with noise.

A placement's worth, in points, is the sum over its modules of site + type + site x type, and in some tables
of an effect of each pair of modules, which has no structure that a model could share. A training adds noise
of 1.1 points, about that of `nette.py`'s trainings from scratch. After a part of its epochs, a training shows
that part of its worth and of its noise, and other noise of which it is rid later, as much in all. Each
repetition of a benchmark plants new effects.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import optuna
from reliability import Reliability, reliability

from search import choices
from search.placement_model import IndexedModule, IndexedPlacement

TYPES = ("ssa", "ssa-sym", "sagan", "decomposed", "multihead", "conv1x1")
NOISE = 1.1
SEEDS = 6  # of the table whose reliability is published


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of table: its space, and how large effects are.

    sd: of the effects of sites, of types and of both together, each. pairs: of those of pairs of modules.
    heavy: effects have Student's t with 3 degrees of freedom, of the same standard deviation.
    settings: hyperparameters are drawn, too, and matter.
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
        Kind(name="nothing", says="241 placements that are all worth the same", sd=0.0),
    )
}


class Table:
    """One planted truth. best: the worth of the best placement, with the best hyperparameters.

    spread: the variance of placements that its kind has, in points squared. noise: of one training.
    """

    noise = NOISE

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind = kind
        self.spread = kind.most * 3 * kind.sd**2 + kind.pairs**2
        self._noise = np.random.default_rng([seed, 1])
        random = np.random.default_rng(seed)

        def effects(sd: float, *shape: int) -> np.ndarray:
            drawn = random.standard_t(3, shape) / 3**0.5 if kind.heavy else random.standard_normal(shape)
            return sd * drawn

        types = len(TYPES)
        of_sites, of_types = effects(kind.sd, kind.sites, 1), effects(kind.sd, 1, types)
        self._cells = of_sites + of_types + effects(kind.sd, kind.sites, types)  # (sites, types)
        self._pairs = effects(kind.pairs, kind.sites, types, kind.sites, types)
        self._optimum = random.uniform(0.2, 0.8, 2)
        self._better = random.integers(2)
        self.best = max(float(worths.max()) for _, worths in self._worths())

    def worth(self, placement: IndexedPlacement) -> float:
        """Points above the backbone without attention."""
        found = [(module.site, TYPES.index(module.type)) for module in placement.modules]
        alone = sum(self._cells[cell] for cell in found)
        return float(alone + sum(self._pairs[one + other] for one, other in combinations(found, 2)))

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        return draw(trial, self.kind)

    def shared_training(self, placement: IndexedPlacement) -> int | None:
        """All trainings start from new weights."""
        return None

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        """What a training shows at its end."""
        return self.train(placement, params)(1.0)

    def train(self, placement: IndexedPlacement, params: dict[str, float | str]) -> Callable[[float], float]:
        """What a new training shows after a part of its epochs, of 1 all of them."""
        worth, noise = self.signed_value(placement) - self.loss(params), self._noise.standard_normal()

        def shown(part: float) -> float:
            other = self._noise.standard_normal() if part < 1 else 0.0
            return float(part * worth + NOISE * (part * noise + (1 - part**2) ** 0.5 * other))

        return shown

    def audit(self) -> Reliability:
        """Of a table with SEEDS scores of each placement, or of 2,000 of them."""
        random = np.random.default_rng(0)
        worths = np.array([worth for _, worth in self.placements()])
        if len(worths) > 2000:
            worths = random.choice(worths, 2000, replace=False)
        return reliability(worths[:, None] + NOISE * random.standard_normal((len(worths), SEEDS)))

    def loss(self, params: dict[str, float | str]) -> float:
        """Points that a table's hyperparameters cost, of those that its space draws."""
        if not self.kind.settings:
            return 0.0
        rate = np.log(float(params["learning_rate"]) / 3e-4) / np.log(100)  # 0 to 1, as weight decay below
        decay = np.log(float(params["weight_decay"]) / 1e-4) / np.log(3000)
        other = params["schedule"] != ("one-cycle", "flat-cosine")[self._better]
        return float(8 * (rate - self._optimum[0]) ** 2 + 2 * (decay - self._optimum[1]) ** 2 + 0.7 * other)

    def _worths(self) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """The worths of all placements, of each combination of sites, with one axis of types per module."""
        for count in range(self.kind.most + 1):
            for sites in combinations(range(self.kind.sites), count):
                total = np.zeros((len(TYPES),) * count)
                for axis, site in enumerate(sites):
                    total = total + _along(self._cells[site], [axis], count)
                for (i, one), (j, other) in combinations(enumerate(sites), 2):
                    total = total + _along(self._pairs[one, :, other, :], [i, j], count)
                yield sites, total

    def placements(self) -> list[tuple[IndexedPlacement, float]]:
        """All placements and their worths."""
        found = []
        for sites, worths in self._worths():
            for kinds in product(range(len(TYPES)), repeat=len(sites)):
                modules = tuple(
                    IndexedModule(site, TYPES[kind]) for site, kind in zip(sites, kinds, strict=True)
                )
                found.append((IndexedPlacement("", modules), float(worths[kinds])))
        return found


def _along(values: np.ndarray, axes: Sequence[int], count: int) -> np.ndarray:
    """`values` of as many dimensions as `axes`, laid along these of `count`."""
    shape = [1] * count
    for axis in axes:
        shape[axis] = len(TYPES)
    return values.reshape(shape)


def draw(trial: optuna.Trial, kind: Kind) -> IndexedPlacement:
    """A table's space."""
    modules = tuple(
        IndexedModule(site, trial.suggest_categorical(f"{choices.TYPE}{i}", TYPES))
        for i, site in enumerate(choices.ascending(trial, kind.sites, most=kind.most), start=1)
    )
    if kind.settings:
        trial.suggest_float("learning_rate", 3e-4, 3e-2, log=True)
        trial.suggest_float("weight_decay", 1e-4, 3e-1, log=True)
        trial.suggest_categorical("schedule", ["one-cycle", "flat-cosine"])
        trial.suggest_categorical("batch_size", [32, 64, 128])  # says nothing
        trial.suggest_float("mixup", 0.0, 0.4, step=0.1)  # nor does this
    return IndexedPlacement("", modules)
