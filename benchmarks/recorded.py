"""Read tables of recorded trainings of the plain model and of single modules.

The tables are of Imagenette (`nette.py`), from scratch and in shared partial trainings, and of digits and
sensors (`record_singles.py`). Each repetition of a benchmark uses half of the seeds. A training shows the
score of one of them; every seed is used once before the first is used again. The effect of a placement is its
mean over the other half, which no search sees. The best of these means is partly luck, so regrets are
slightly too large, equally for all methods.

From scratch on Imagenette, scores and regrets are accuracies in points. In shared partial trainings, scores
are validation losses in thousandths of a nat below the plain training of the same shared partial training,
of which each is one seed. On digits and sensors, scores are negative validation losses in
thousandths of a nat. In both cases regrets are relative to a placement chosen at random: 0 is the best
placement, 1 the mean of all.
"""

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import nette
import numpy as np
import optuna
import record_singles
from bench_fidelity import complete_seeds, score_of
from reliability import Reliability, reliability

from search import choices
from search.placement_effects import IndexedModule, IndexedPlacement

ENOUGH = 4  # seeds


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Recorded trainings of the plain model and of single modules.

    at: As in `nette.Work`. None for a table of `record_singles.py`. Scores of branches are
        differences from the plain branch of their seed.
    score: `accuracy` or `loss`. With `loss`, regrets are relative.
    """

    name: str
    says: str
    score: str
    at: int | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        return record_singles.SITES[self.name] if self.at is None else nette.SITES

    @property
    def names(self) -> list[str]:
        return ["plain", *nette.singles(self.sites)]


RECORDINGS = {
    recording.name: recording
    for recording in (
        Recording(
            name="nette", says="26 placements on Imagenette at 48 px, recorded", at=0, score="accuracy"
        ),
        Recording(
            name="nette-shared",
            says="26 placements in shared partial trainings on Imagenette; regret relative to a blind choice",
            at=6,
            score="loss",
        ),
        Recording(name="digits", says="26 placements on digits, recorded; relative regret", score="loss"),
        Recording(
            name="sensors", says="26 placements on a part of UCI HAR, recorded; relative regret", score="loss"
        ),
        Recording(name="lookup", says="46 placements on look-ups by colour, recorded", score="accuracy"),
    )
}


@lru_cache
def scores(recording: Recording) -> np.ndarray:
    """Return scores (names, seeds) in the order of `names`, of the seeds that are complete."""
    if recording.at is None:
        factor = 100 if recording.score == "accuracy" else -1000
        return factor * _single_scores(recording)
    at, names = recording.at, recording.names
    rows = {(row["at"], row["placement"], row["seed"]): row for row in nette.read() if row["at"] == at}
    seeds = complete_seeds(rows, at, names)
    table = np.array([[score_of(rows[at, name, seed], recording.score) for seed in seeds] for name in names])
    return 1000 * (table - table[0]) if at else table


def _single_scores(recording: Recording) -> np.ndarray:
    rows = [row for row in record_singles.read() if row["table"] == recording.name]
    scores = {(row["placement"], row["seed"]): row[recording.score] for row in rows}
    every = range(record_singles.SEEDS)
    seeds = [seed for seed in every if all((name, seed) in scores for name in recording.names)]
    return np.array([[scores[name, seed] for seed in seeds] for name in recording.names])


def seeds(recording: Recording) -> int:
    return int(scores(recording).shape[1])


class Table:
    """Table of recorded scores.

    Attributes:
        best: Effect of the best placement.
        spread: Variance of the placements' scores.
        noise: Standard deviation of the scores of one placement.
    """

    def __init__(self, recording: Recording, seed: int) -> None:
        self.recording = recording
        order = np.random.default_rng(seed).permutation(seeds(recording))
        self._shown, hidden = np.array_split(scores(recording)[:, order], 2, axis=1)
        self._trained: Counter[tuple[int, int]] = Counter()  # by placement and seed
        self._effects = hidden.mean(axis=1)
        if recording.score == "loss":
            self._effects = (self._effects - self._effects.mean()) / np.ptp(
                [self._effects.max(), self._effects.mean()]
            )
        self.best = float(self._effects.max())
        single = float(_own(recording).var(axis=1, ddof=1).mean())
        self.noise = single**0.5
        self.spread = max(0.0, self.audit().intraclass) * single

    def draw(self, trial: optuna.Trial) -> IndexedPlacement:
        modules = tuple(
            IndexedModule(site, trial.suggest_categorical(f"{choices.TYPE}{i}", nette.TYPES))
            for i, site in enumerate(choices.ascending(trial, len(self.recording.sites), most=1), start=1)
        )
        return IndexedPlacement("", modules)

    def score(self, placement: IndexedPlacement, params: dict[str, float | str]) -> float:
        """Return the score of the next training."""
        row = self._row(placement)
        seed = self._next(row)
        self._trained[row, seed] += 1
        return float(self._shown[row, seed])

    def _next(self, row: int) -> int:
        """Return the seed that a placement has had least often."""
        return min(range(self._shown.shape[1]), key=lambda seed: (self._trained[row, seed], seed))

    def _row(self, placement: IndexedPlacement) -> int:
        if not placement.modules:
            return 0
        (module,) = placement.modules
        return self.recording.names.index(f"{module.type}@{self.recording.sites[module.site]}")

    def effect(self, placement: IndexedPlacement) -> float:
        return float(self._effects[self._row(placement)])

    def loss(self, params: dict[str, float | str]) -> float:
        """Return 0: no hyperparameters are drawn."""
        return 0.0

    def audit(self) -> Reliability:
        """Return the reliability of scores less the mean of their seed, as a model with blocks uses them."""
        return reliability(_own(self.recording))


def limits(recording: Recording, tables: int = 2000, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return the regrets of ideal searches, from `tables` generated tables with the variances of this one.

    Each is a mean over all halves of the seeds, with its mean over tables and its 5 % and 95 % quantiles.
    `known` is the regret of the true best placement, `means` that of the best mean over the shown seeds,
    which is all that a search can learn, and `any` that of a random placement. If their ranges overlap, one
    table cannot distinguish searches.
    """
    own = _own(recording)
    rows, columns = own.shape
    means = own.mean(axis=1)
    noise = ((own - means[:, None]) ** 2).sum() / ((rows - 1) * (columns - 1))  # variances
    spread = max(0.0, means.var(ddof=1) - noise / columns)
    draw = np.random.default_rng(seed)
    truth = draw.normal(0, np.sqrt(spread), (tables, rows))
    generated = truth[:, :, None] + draw.normal(0, np.sqrt(noise), (tables, rows, columns))
    regrets: dict[str, list[np.ndarray]] = {"known": [], "means": [], "any": []}
    for half in itertools.combinations(range(columns), columns - columns // 2):
        shown = generated[:, :, half].mean(axis=2)
        hidden = np.delete(generated, half, axis=2).mean(axis=2)
        best, every = hidden.max(axis=1), np.arange(tables)
        random = best - hidden.mean(axis=1)
        unit = random if recording.score == "loss" else 1.0
        regrets["known"].append((best - hidden[every, truth.argmax(axis=1)]) / unit)
        regrets["means"].append((best - hidden[every, shown.argmax(axis=1)]) / unit)
        regrets["any"].append(random / unit)
    result = {}
    for name, values in regrets.items():
        low, high = np.quantile(np.mean(values, axis=0), [0.05, 0.95])
        result[name] = {"mean": float(np.mean(values)), "low": float(low), "high": float(high)}
    return result


def _own(recording: Recording) -> np.ndarray:
    """Return scores less the mean of their seed."""
    centred: np.ndarray = scores(recording) - scores(recording).mean(axis=0)
    return centred
