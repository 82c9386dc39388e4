"""A table of recorded trainings: plain and single modules on Imagenette, from scratch (`nette.py`).

Each repetition of a benchmark takes half of the seeds. A training shows the accuracy of one of them, in
points, each seed once before the first one comes again. What a placement is worth is its mean over the other
half, which no search sees. The best of these is the best by luck, too, so regrets are a little too large, of
all methods alike.
"""

import itertools
from functools import lru_cache

import nette
import numpy as np
import optuna
from bench_fidelity import of, whole
from reliability import Reliability, reliability

from search import choices
from search.placement_model import Module, Placement

NAME = "nette"
SAYS = "26 placements on Imagenette at 48 px, recorded"
ENOUGH = 4  # seeds


@lru_cache(maxsize=1)
def scores() -> np.ndarray:
    """Of plain and each single module, in the order of `names`, with each seed that is whole."""
    rows = {(row["at"], row["placement"], row["seed"]): row for row in nette.read() if row["at"] == 0}
    seeds = whole(rows, 0, names())
    return np.array([[of(rows[0, name, seed], "accuracy") for seed in seeds] for name in names()])


def names() -> list[str]:
    return ["plain", *nette.singles()]


def seeds() -> int:
    return int(scores().shape[1])


class Table:
    """best: the worth of the best placement. spread: the variance of placements, in points squared."""

    def __init__(self, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(seeds())
        self._shown, self._judged = np.array_split(scores()[:, order], 2, axis=1)
        self._seen: dict[int, int] = {}
        self.best = float(self._judged.mean(axis=1).max())
        found = self.audit()
        self.spread = max(0.0, found.intraclass) * float(scores().var(axis=1, ddof=1).mean())

    def draw(self, trial: optuna.Trial) -> Placement:
        modules = tuple(
            Module(site, trial.suggest_categorical(f"{choices.TYPE}{i}", nette.TYPES))
            for i, site in enumerate(choices.ascending(trial, len(nette.SITES), most=1), start=1)
        )
        return Placement("", modules)

    def score(self, placement: Placement, params: dict[str, float | str]) -> float:
        """What a training shows."""
        row = _row(placement)
        self._seen[row] = self._seen.get(row, -1) + 1
        return float(self._shown[row, self._seen[row] % self._shown.shape[1]])

    def worth(self, placement: Placement) -> float:
        return float(self._judged[_row(placement)].mean())

    def loss(self, params: dict[str, float | str]) -> float:
        """No hyperparameters are drawn."""
        return 0.0

    def audit(self) -> Reliability:
        """Of scores less their seed's mean, as a model has them that knows blocks."""
        return reliability(scores() - scores().mean(axis=0))


def limits(tables: int = 2000, seed: int = 0) -> dict[str, dict[str, float]]:
    """Mean regrets over all halves of one table, of `tables` made-up ones with the variances of this one.

    known: of the placement that is truly best. means: of the best mean over the shown seeds, all that a
    search can learn. any: of one that is taken blindly. Of each the mean over tables, and 5 and 95 %. Where
    these lie within one another, one table cannot tell searches apart.
    """
    own = scores() - scores().mean(axis=0)
    rows, columns = own.shape
    means = own.mean(axis=1)
    noise = ((own - means[:, None]) ** 2).sum() / ((rows - 1) * (columns - 1))  # variances
    spread = max(0.0, means.var(ddof=1) - noise / columns)
    draw = np.random.default_rng(seed)
    truth = draw.normal(0, np.sqrt(spread), (tables, rows))
    made = truth[:, :, None] + draw.normal(0, np.sqrt(noise), (tables, rows, columns))
    found: dict[str, list[np.ndarray]] = {"known": [], "means": [], "any": []}
    for half in itertools.combinations(range(columns), columns // 2):
        shown = made[:, :, half].mean(axis=2)
        judged = np.delete(made, half, axis=2).mean(axis=2)
        best, every = judged.max(axis=1), np.arange(tables)
        found["known"].append(best - judged[every, truth.argmax(axis=1)])
        found["means"].append(best - judged[every, shown.argmax(axis=1)])
        found["any"].append(best - judged.mean(axis=1))
    told = {}
    for name, regrets in found.items():
        low, high = np.quantile(np.mean(regrets, axis=0), [0.05, 0.95])
        told[name] = {"mean": float(np.mean(regrets)), "low": float(low), "high": float(high)}
    return told


def _row(placement: Placement) -> int:
    if not placement.modules:
        return 0
    (module,) = placement.modules
    return names().index(f"{module.type}@{nette.SITES[module.site]}")
