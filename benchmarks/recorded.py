"""Tables of recorded trainings: plain and single modules on Imagenette (`nette.py`), from scratch and in
shared partial trainings.

Each repetition of a benchmark takes half of the seeds. A training shows the score of one of them, each seed
once before the first one comes again. What a placement is worth is its mean over the other half, which no
search sees. The best of these is the best by luck, too, so regrets are a little too large, of all methods
alike.

From scratch, scores are accuracies in points, and so are regrets. In shared partial trainings they are
validation losses in thousandths of a nat below the shared partial training's plain training, trials know
their shared partial training, and regrets are parts of what a placement has that is taken blindly: 0 of the
best, 1 of the mean of all.
"""

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import nette
import numpy as np
import optuna
from bench_fidelity import of, whole
from reliability import Reliability, reliability

from search import choices
from search.placement_model import IndexedModule, IndexedPlacement

ENOUGH = 4  # seeds


@dataclass(frozen=True, kw_only=True)
class Recording:
    """at: as in `nette.Work`. score: `accuracy` or `loss`. shared partial trainings: see above."""

    name: str
    says: str
    at: int
    score: str
    shared_trainings: bool = False


RECORDINGS = {
    one.name: one
    for one in (
        Recording(
            name="nette", says="26 placements on Imagenette at 48 px, recorded", at=0, score="accuracy"
        ),
        Recording(
            name="nette-shared",
            says="26 placements in shared partial trainings on Imagenette; regret relative to a blind choice",
            at=6,
            score="loss",
            shared_trainings=True,
        ),
    )
}


@lru_cache
def scores(recording: Recording) -> np.ndarray:
    """Of plain and each single module, in the order of `names`, with each seed that is whole."""
    at = recording.at
    rows = {(row["at"], row["placement"], row["seed"]): row for row in nette.read() if row["at"] == at}
    seeds = whole(rows, at, names())
    found = np.array([[of(rows[at, name, seed], recording.score) for seed in seeds] for name in names()])
    return 1000 * (found - found[0]) if recording.shared_trainings else found


def names() -> list[str]:
    return ["plain", *nette.singles()]


def seeds(recording: Recording) -> int:
    return int(scores(recording).shape[1])


class Table:
    """best: the worth of the best placement. spread: the variance of placements' scores.

    noise: the standard deviation of one placement's.
    """

    def __init__(self, recording: Recording, seed: int) -> None:
        self.recording = recording
        order = np.random.default_rng(seed).permutation(seeds(recording))
        self._shown, judged = np.array_split(scores(recording)[:, order], 2, axis=1)
        self._trained: Counter[tuple[int, int]] = Counter()  # of a placement and a seed
        self._worths = judged.mean(axis=1)
        if recording.shared_trainings:
            self._worths = (self._worths - self._worths.mean()) / np.ptp(
                [self._worths.max(), self._worths.mean()]
            )
        self.best = float(self._worths.max())
        single = float(_own(recording).var(axis=1, ddof=1).mean())
        self.noise = single**0.5
        part = max(0.0, self.audit().intraclass)
        self.spread = part * single

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        modules = tuple(
            IndexedModule(site, trial.suggest_categorical(f"{choices.TYPE}{i}", nette.TYPES))
            for i, site in enumerate(choices.ascending(trial, len(nette.SITES), most=1), start=1)
        )
        return IndexedPlacement("", modules)

    def shared_training(self, placement: IndexedPlacement) -> int | None:
        """That the next training of a placement goes on from."""
        return self._next(_row(placement)) if self.recording.shared_trainings else None

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        """What a training shows."""
        row = _row(placement)
        seed = self._next(row)
        self._trained[row, seed] += 1
        return float(self._shown[row, seed])

    def _next(self, row: int) -> int:
        """The seed that a placement has had least often; in shared partial trainings, of these that of the
        fewest trials.
        """
        uses: Counter[int] = Counter()
        for (_, seed), count in self._trained.items():
            uses[seed] += count * self.recording.shared_trainings
        return min(range(self._shown.shape[1]), key=lambda seed: (self._trained[row, seed], uses[seed], seed))

    def worth(self, placement: IndexedPlacement) -> float:
        return float(self._worths[_row(placement)])

    def loss(self, params: dict[str, float | str]) -> float:
        """No hyperparameters are drawn."""
        return 0.0

    def audit(self) -> Reliability:
        """Of scores less their seed's mean, as a model has them that knows blocks."""
        return reliability(_own(self.recording))


def limits(recording: Recording, tables: int = 2000, seed: int = 0) -> dict[str, dict[str, float]]:
    """Mean regrets over all halves of one table, of `tables` made-up ones with the variances of this one.

    known: of the placement that is truly best. means: of the best mean over the shown seeds, all that a
    search can learn. any: of one that is taken blindly. Of each the mean over tables, and 5 and 95 %. Where
    these lie within one another, one table cannot tell searches apart.
    """
    own = _own(recording)
    rows, columns = own.shape
    means = own.mean(axis=1)
    noise = ((own - means[:, None]) ** 2).sum() / ((rows - 1) * (columns - 1))  # variances
    spread = max(0.0, means.var(ddof=1) - noise / columns)
    draw = np.random.default_rng(seed)
    truth = draw.normal(0, np.sqrt(spread), (tables, rows))
    made = truth[:, :, None] + draw.normal(0, np.sqrt(noise), (tables, rows, columns))
    found: dict[str, list[np.ndarray]] = {"known": [], "means": [], "any": []}
    for half in itertools.combinations(range(columns), columns - columns // 2):
        shown = made[:, :, half].mean(axis=2)
        judged = np.delete(made, half, axis=2).mean(axis=2)
        best, every = judged.max(axis=1), np.arange(tables)
        blind = best - judged.mean(axis=1)
        unit = blind if recording.shared_trainings else 1.0
        found["known"].append((best - judged[every, truth.argmax(axis=1)]) / unit)
        found["means"].append((best - judged[every, shown.argmax(axis=1)]) / unit)
        found["any"].append(blind / unit)
    told = {}
    for name, regrets in found.items():
        low, high = np.quantile(np.mean(regrets, axis=0), [0.05, 0.95])
        told[name] = {"mean": float(np.mean(regrets)), "low": float(low), "high": float(high)}
    return told


def _own(recording: Recording) -> np.ndarray:
    """Scores less what a seed's have in common."""
    found: np.ndarray = scores(recording) - scores(recording).mean(axis=0)
    return found


def _row(placement: IndexedPlacement) -> int:
    if not placement.modules:
        return 0
    (module,) = placement.modules
    return names().index(f"{module.type}@{nette.SITES[module.site]}")
