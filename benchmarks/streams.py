"""Streams of changes for `bench_referee.py stream`: what several rules accept, believe and cost.

A stream has 700 changes, of which 20 are real: 7 gain half a standard deviation of the paired difference, 7
gain one, and 6 gain two. The others have no effect. An accepted change is the next baseline. The noise is
that of recorded trainings, see `bench_referee.py`. Figures are means over 200 streams. The rules:

- `ledger`: `automl referee --ledger`.
- `one run`: keep a change if its run is better than the best so far, as karpathy/autoresearch does.
- `two seeds`: keep a change if the mean of two runs is better than that of two runs of the baseline.
- `single call`: keep a change if `automl referee` calls it better, in ten sequential pairs.

Gains are in standard deviations of the paired difference. `believed` is the sum of the gains that a rule
has measured of the changes that it kept, and `true` is the sum of their effects. For `one run`, `believed`
is the best score minus the first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from automl.judge import evalues

CHANGES, STREAMS = 700, 200
EFFECTS = {0.5: 7, 1.0: 7, 2.0: 6}


@dataclass
class Tally:
    """Counts of a rule in each stream, `(streams,)`, and the effects that it accepted and met."""

    rule: str
    streams: int
    true: np.ndarray = field(init=False)
    believed: np.ndarray = field(init=False)
    cost: np.ndarray = field(init=False)
    accepted: np.ndarray = field(init=False)
    false: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.true, self.believed, self.cost = (np.zeros(self.streams) for _ in range(3))
        self.accepted, self.false = (np.zeros(self.streams, int) for _ in range(2))
        self.hits = {size: [0, 0] for size in EFFECTS}

    def add(self, effects: np.ndarray, kept: np.ndarray, gains: np.ndarray, cost: np.ndarray | float) -> None:
        self.true += effects * kept
        self.believed += gains * kept
        self.cost += cost
        self.accepted += kept
        self.false += kept & (effects == 0)
        for size, counts in self.hits.items():
            counts[0] += int((kept & (effects == size)).sum())
            counts[1] += int((effects == size).sum())

    def values(self) -> dict[str, float]:
        rate = self.false / np.maximum(1, self.accepted)
        return {
            "accepted": float(self.accepted.mean()),
            "false discovery rate": float(rate.mean()),
            **{f"power at {size:g} sd": hit / met for size, (hit, met) in self.hits.items()},
            "trainings per change": float(self.cost.mean() / CHANGES),
            "true gain": float(self.true.mean()),
            "believed gain": float(self.believed.mean()),
        }


class Noise:
    """Deviations of recorded trainings, in standard deviations of the paired difference."""

    def __init__(self, tables: Sequence[np.ndarray], streams: int, rng: np.random.Generator) -> None:
        scaled = []
        for table in tables:
            model, seed = rng.integers(len(table), size=100_000), rng.integers(table.shape[1], size=100_000)
            other = (model + rng.integers(1, len(table), size=100_000)) % len(table)
            scaled.append(table / float((table[model, seed] - table[other, seed]).std()))
        self.tables, self.rng = np.stack(scaled), rng
        self.table = np.arange(streams) % len(scaled)

    def seeds(self, count: int) -> np.ndarray:
        return self.rng.integers(self.tables.shape[2], size=(len(self.table), count))

    def models(self, count: int) -> np.ndarray:
        return self.rng.integers(self.tables.shape[1], size=(len(self.table), count))

    def other(self, models: np.ndarray) -> np.ndarray:
        count = self.tables.shape[1]
        return np.asarray((models + self.rng.integers(1, count, size=models.shape)) % count)

    def runs(self, models: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        return np.asarray(self.tables[self.table[:, None], models, seeds])

    def pairs(self, count: int) -> np.ndarray:
        """Return differences without an effect, `(streams, count)`, each of two models at a fresh seed."""
        models, seeds = self.models(count), self.seeds(count)
        return self.runs(self.other(models), seeds) - self.runs(models, seeds)


def effects(rng: np.random.Generator, streams: int) -> np.ndarray:
    """Return the effect of each change, `(streams, changes)`."""
    sizes = [size for size, count in EFFECTS.items() for _ in range(count)]
    values = np.zeros((streams, CHANGES))
    for row in values:
        row[rng.permutation(CHANGES)[: len(sizes)]] = sizes
    return values


def ledger(noise: Noise, sizes: np.ndarray, *, most: int = evalues.MOST) -> dict[str, float]:
    """Replay `automl referee --ledger`, one pair after the other."""
    rng, tally, rows = noise.rng, Tally("ledger", len(sizes)), np.arange(len(sizes))
    screened, tests, early = evalues.SCREEN, np.zeros(len(sizes), int), 0.0
    models, seeds = noise.models(evalues.POOL), noise.seeds(evalues.POOL)
    trained = np.zeros(models.shape, bool)
    for effect in sizes.T:
        drawn = rng.permuted(np.tile(np.arange(evalues.POOL), (len(sizes), 1)), axis=1)[:, :screened]
        own, at = models[rows[:, None], drawn], seeds[rows[:, None], drawn]
        screen = noise.runs(noise.other(own), at) - noise.runs(own, at) + effect[:, None]
        test = noise.pairs(most) + effect[:, None]
        futile = evalues.is_futile(np.concatenate([screen, test], axis=1))
        stopped = first(futile)
        tested = stopped > screened
        tests += tested
        bound = -np.log(evalues.level(np.maximum(tests, 1), tally.accepted))
        crossed = first(evalues.log_e_values(test, screen) >= bound[:, None])
        pairs = np.where(tested, np.minimum(np.minimum(crossed, stopped - screened), most), 0)
        kept = tested & (crossed < stopped - screened) & (crossed <= most)
        own_runs = np.minimum(stopped, screened)
        early += float((own_runs <= 3).mean()) / CHANGES
        needed = np.arange(screened) < own_runs[:, None]
        fresh = needed & ~trained[rows[:, None], drawn]
        trained[rows[:, None], drawn] |= needed
        means = np.cumsum(test, axis=1)[rows, np.maximum(pairs, 1) - 1] / np.maximum(pairs, 1)
        tally.add(effect, kept, means, own_runs + fresh.sum(axis=1) + 2 * pairs)
        models[kept], seeds[kept] = noise.models(evalues.POOL)[kept], noise.seeds(evalues.POOL)[kept]
        trained[kept] = False
    return {**tally.values(), "tests": float(tests.mean()), "ended after 2 or 3 runs": early}


def first(flags: np.ndarray) -> np.ndarray:
    """Return the number of the first True of each row, counted from 1, or a large number."""
    return np.where(flags.any(axis=1), flags.argmax(axis=1) + 1, 10**6)


def one_run(noise: Noise, sizes: np.ndarray) -> dict[str, float]:
    """Replay the rule of one run each, against the best so far."""
    tally, level = Tally("one run", len(sizes)), np.zeros(len(sizes))
    best = noise.runs(noise.models(1), noise.seeds(1))[:, 0]
    for effect in sizes.T:
        score = level + effect + noise.runs(noise.models(1), noise.seeds(1))[:, 0]
        kept = score > best
        tally.add(effect, kept, score - best, 1)
        best, level = np.where(kept, score, best), level + effect * kept
    return tally.values()


def two_seeds(noise: Noise, sizes: np.ndarray) -> dict[str, float]:
    """Replay the rule of two runs on either side."""
    tally = Tally("two seeds", len(sizes))
    for effect in sizes.T:
        means = noise.pairs(2).mean(axis=1) + effect
        tally.add(effect, means > 0, means, 4)
    return tally.values()


def single_call(
    noise: Noise, sizes: np.ndarray, judged: Callable[[float], Sequence[tuple[bool, float, int]]]
) -> dict[str, float]:
    """Replay calls of the referee. `judged` gives many of them: better or not, mean gain, and pairs."""
    tally = Tally("single call", len(sizes))
    banks = {size: np.array(judged(size)) for size in (0.0, *EFFECTS)}
    for effect in sizes.T:
        rows = np.zeros((len(sizes), 3))
        for size, bank in banks.items():
            at = effect == size
            rows[at] = bank[noise.rng.integers(len(bank), size=int(at.sum()))]
        tally.add(effect, rows[:, 0] > 0, rows[:, 1], 2 * rows[:, 2])
    return tally.values()
