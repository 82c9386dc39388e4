"""Error rates of a stream of changes: exact, on drawn scores, and against a caller who adapts."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from automl.judge import evalues


def accepts(screen: np.ndarray, test: np.ndarray, tests: np.ndarray, discoveries: np.ndarray) -> np.ndarray:
    """Return which comparisons of one row each are accepted, and count their tests."""
    futile = evalues.is_futile(np.concatenate([screen, test], axis=1))
    tested = ~futile[:, : screen.shape[1]].any(axis=1)
    tests += tested
    bound = -np.log(evalues.level(np.maximum(tests, 1), discoveries))
    crossed = evalues.log_e_values(test, screen) >= bound[:, None]
    stopped = np.logical_or.accumulate(futile[:, screen.shape[1] :], axis=1)
    return np.asarray(tested & (crossed & ~stopped).any(axis=1))


@pytest.mark.parametrize("sizes", [(1.0,) * 8, (0.1, 3, 1, 1, 20, 0.5, 2, 1), (5, 4, 3, 2, 1, 0.5, 0, 0.1)])
def test_the_mean_over_all_signs_is_one(sizes: tuple[float, ...]) -> None:
    signs = np.array(list(itertools.product([-1, 1], repeat=len(sizes))))
    values = np.exp(evalues.log_e_values(signs * np.array(sizes), np.array([[0.3, 2.0]])))
    assert values.mean(axis=0) == pytest.approx(np.ones(len(sizes)))


def test_neither_a_worse_candidate_nor_adapting_gains() -> None:
    signs = np.array(list(itertools.product([-1, 1], repeat=8)))
    probability = np.prod(np.where(signs > 0, 0.4, 0.6), axis=1)
    values = np.exp(evalues.log_e_values(signs * np.arange(1.0, 9), np.zeros((1, 0))))[:, -1]
    assert probability @ values < 1
    # It chooses each size by the signs so far, and stops at its best: also then the mean is at most 1.
    rng, rows = np.random.default_rng(0), 40_000
    signs = rng.choice([-1.0, 1.0], size=(rows, 12))
    lead = np.cumsum(signs, axis=1) - signs
    sizes = np.exp(np.clip(lead, -3, 3)) * np.where(lead < 0, 5.0, 0.2)
    values = np.exp(evalues.log_e_values(signs * sizes, np.ones((rows, 2))))
    target = values >= 3
    stopped = values[np.arange(rows), np.where(target.any(1), target.argmax(1), 11)]
    assert stopped.mean() < 1 + 4 * stopped.std() / math.sqrt(rows)
    assert target.any(axis=1).mean() < 1 / 3


@pytest.mark.parametrize("noise", ["normal", "heavy", "skewed pairs", "discrete"])
def test_null_streams(noise: str) -> None:
    """2,000 streams of 60 changes without an effect, 500 for each kind of noise."""
    rng, streams = np.random.default_rng(len(noise)), 500
    draw = {
        "normal": lambda size: rng.standard_normal(size),
        "heavy": lambda size: rng.standard_t(2, size),
        "skewed pairs": lambda size: rng.exponential(size=size) - rng.exponential(size=size),
        "discrete": lambda size: rng.integers(-2, 3, size).astype(float),
    }[noise]
    tests, hits = np.zeros(streams, int), np.zeros(streams, int)
    for _ in range(60):
        hits += accepts(draw((streams, evalues.SCREEN)), draw((streams, 30)), tests, hits)
    # Without a real change, each stream with a discovery has a false discovery rate of 1.
    assert (hits > 0).mean() <= 0.05
    assert tests.mean() > 5


def test_streams_with_real_and_with_skewed_changes() -> None:
    rng, streams = np.random.default_rng(1), 400
    tests, hits, false, power = np.zeros(streams, int), np.zeros(streams, int), np.zeros(streams, int), []
    for number in range(60):
        gain = 1.5 * (number % 6 == 0)
        screen, test = (rng.standard_normal((streams, n)) + gain for n in (evalues.SCREEN, 40))
        kept = accepts(screen, test, tests, hits)
        hits, false = hits + kept, false + (kept & (gain == 0))
        if gain:
            power.append(kept.mean())
    assert (false / np.maximum(hits, 1)).mean() <= 0.05
    assert np.mean(power) > 0.8
    # No gain on average, but most pairs are won. Three stakes of 0.5, 1 and 2 accepted 19 % of streams.
    rng, streams = np.random.default_rng(4), 300
    tests, hits = np.zeros(streams, int), np.zeros(streams, int)
    for _ in range(50):
        screen, test = (1 - rng.exponential(size=(streams, n)) for n in (evalues.SCREEN, evalues.MOST))
        hits += accepts(screen, test, tests, hits)
    assert (hits > 0).mean() <= 0.08


def test_levels_add_up_and_an_interval_needs_pairs() -> None:
    levels = evalues.level(np.arange(1, 10_001), 0)
    assert levels[0] == pytest.approx(0.05 * (1 - evalues.share_left(1)))
    assert levels.sum() == pytest.approx(0.05 * (1 - evalues.share_left(10_000)))
    assert evalues.level(7, 3) == pytest.approx(4 * levels[6])
    assert evalues.share_left(0) == pytest.approx(1)
    assert pytest.approx(special.zeta(evalues.DECAY), rel=1e-14) == evalues.WHOLE
    assert evalues.interval(np.array([1.0, 2.0, 1.5]), np.zeros(0)) == (-math.inf, math.inf)
    low, high = evalues.interval(np.full(12, 2.0), np.zeros(0))
    assert low == pytest.approx(2, abs=1e-4)
    assert high == pytest.approx(2, abs=1e-4)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_intervals_cover_whenever_they_stop(shift: float) -> None:
    rng, held, widths = np.random.default_rng(2), [], []
    for _ in range(150):
        d = shift + rng.standard_normal(25)
        log_e = evalues.log_e_values(d, np.zeros(0))
        end = int(np.argmax(log_e >= 3)) + 1 if (log_e >= 3).any() else 25
        low, high = evalues.interval(d[:end], np.zeros(0))
        held.append(low <= shift <= high)
        widths.append(high - low)
    assert np.mean(held) >= 0.95
    assert min(widths) > 0


@pytest.mark.parametrize(
    ("kind", "doubts"),
    [("normal", 0.1), ("skewed to the right", 0.1), ("skewed to the left", 1), ("in a row", 1)],
)
def test_pairs_that_break_an_assumption_are_named(kind: str, doubts: float) -> None:
    rng, named = np.random.default_rng(3), 0
    for _ in range(40):
        d = rng.standard_normal(40)
        if "skewed" in kind:
            d = (np.exp(2 * d) - 8) * (1 if "right" in kind else -1)
        elif kind == "in a row":
            d = np.cumsum(d)
        named += any(("skewness" if "left" in kind else "") in text for text in evalues.find_doubts(d))
    assert named >= 36 if doubts == 1 else named <= 4


@pytest.mark.parametrize(
    ("differences", "futile"),
    [
        ([-1.0, -2.0], [False, True]),
        ([1.0, 2.0, 1.5], [False] * 3),
        ([0.0, 0.0], [False, True]),
        ([2.0, 2.0, 2.0], [False] * 3),
        ([-2.0, -2.0], [False, True]),
    ],
)
def test_futility(differences: list[float], futile: list[bool]) -> None:
    assert evalues.is_futile(np.array(differences)).tolist() == futile
