"""The ratio of two epochs' times, with simulated times. Real times are measured too, but not asserted."""

import gc
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from scipy import stats

from automl.costs import time_ratio
from automl.costs.time_ratio import BELIEVED, Epoch, TimeRatio, Timings, interval, measure_time_ratio
from automl.costs.trimmed_mean import LEAST, TRIMMED, trimmed_mean
from tests.helpers.automl_cases import HERE, Regression, opened

Clock = Callable[[float, float, float], None]


@pytest.mark.parametrize("count", [2, 7, 8, 20])
def test_a_ratio_and_its_inverse_have_inverse_intervals(count: int) -> None:
    generator = random.Random(count)
    ratios = [generator.lognormvariate(0.2, 0.1) for _ in range(count)]
    value, low, high = interval(ratios)
    back = interval([1 / ratio for ratio in ratios])
    assert low <= value <= high
    assert (back[1], back[2]) == pytest.approx((1 / high, 1 / low))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Simulate a machine on which the trial takes `ratio` times as long as the baseline.

    `noise` is relative. Each reading of the clock that limits measuring is `step` seconds later.
    """

    def set_clock(ratio: float, noise: float = 0.0, step: float = 1.0) -> None:
        generator, now = random.Random(1), iter(range(10**9))

        def seconds_of(self: Epoch, run: object) -> float:
            is_trial = self.task.config.seed == 1
            return (ratio if is_trial else 1.0) * generator.lognormvariate(0, noise)

        monkeypatch.setattr(Epoch, "seconds_of", seconds_of)
        monkeypatch.setattr(time_ratio, "elapsed", lambda runtime: step * next(now))

    return set_clock


def measure(
    timings: Timings | None = None, *, floor: float = 0.0, validations: int = 1, **training: int
) -> TimeRatio:
    """Measure the ratio of a task of ten steps and eight passes per epoch, in simulated time."""
    task, baseline = Regression(**training), Regression()
    task.config = task.config.change(seed=1)
    task.runtime = baseline.runtime = replace(HERE, validations=validations)
    return measure_time_ratio(task, baseline, timings or Timings(), floor=floor)


def test_measuring_ends_once_the_interval_is_narrow(clock: Clock) -> None:
    clock(1.25)
    timings = Timings()
    result = measure(timings)
    assert (result.ratio, result.low, result.high) == pytest.approx((1.25, 1.25, 1.25))
    assert not result.imprecise
    assert len(timings.steps) == LEAST
    # An epoch is ten steps and five passes, of which each takes the baseline a second.
    assert result.epoch == pytest.approx(1.25 * 15)
    assert result.validation == pytest.approx(5 / 15)
    clock(1.25, noise=0.05, step=0.0)
    timings = Timings()
    result = measure(timings)
    assert len(timings.steps) > LEAST
    assert result.high - result.ratio <= 0.02 * result.ratio
    assert result.ratio == pytest.approx(1.25, rel=0.03)


def test_an_imprecise_ratio_is_marked_and_the_next_trial_adds_timings(clock: Clock) -> None:
    clock(1.25, noise=0.2)
    timings, counts = Timings(), []
    while (result := measure(timings)).imprecise:
        assert max(result.high / result.ratio, result.ratio / result.low) > 1 + BELIEVED
        assert result.low <= result.ratio <= result.high
        counts.append(len(timings.steps))
        clock(1.25, noise=0.2 / (1 + len(counts)))  # The noise decreases.
    assert counts == sorted(set(counts)), "each trial adds timings"
    assert len(timings.steps) > counts[-1] > LEAST
    assert result.ratio == pytest.approx(1.25, rel=0.05)


def test_ratio_has_a_floor_and_is_of_the_time_per_image(clock: Clock) -> None:
    clock(0.7)
    result = measure(floor=1.0)
    assert (result.ratio, result.low, result.high) == (1.0, 1.0, 1.0)
    assert measure().ratio == pytest.approx(0.7), "a model without added modules may be faster"
    # Steps with half the images that take as long make an epoch of twice the time.
    clock(1.0)
    assert measure(batch_size=4).ratio == pytest.approx(2.0)
    assert measure(batch_size=16).ratio == pytest.approx((5 + 3) / 15)
    twice = measure(batch_size=16, validations=2)
    assert (twice.ratio, twice.validation) == pytest.approx(((5 + 2 * 3) / 20, 6 / 11))


def test_order_of_the_models_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that becomes slower and slower, the second is not always the same model."""
    speeds = cycle([1.0, 2.0])
    monkeypatch.setattr(Epoch, "seconds_of", lambda self, run: next(speeds))
    monkeypatch.setattr(time_ratio, "ALLOWED", 0.0)
    monkeypatch.setattr(time_ratio, "MEASURING_FRACTION", 0.0)
    timings = Timings()
    measure_time_ratio(Regression(), Regression(), timings)
    assert timings.steps[:4] == [(1.0, 2.0), (2.0, 1.0)] * 2


def test_measured_model_is_freed_at_once() -> None:
    """A training that starts afterwards has the memory, without a collection of cycles."""
    epoch = Epoch(opened())
    epoch.step()
    model = weakref.ref(epoch.state.model)
    gc.disable()
    try:
        del epoch
        assert model() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("count", [8, 9, 10, 14, 15, 40])
def test_it_equals_scipys(count: int) -> None:
    values = np.random.default_rng(count).gumbel(3, 2, count)
    limits = 2 * (max(1, int(TRIMMED * count)) / count + 1e-9,)
    low, high = stats.mstats.trimmed_mean_ci(values, limits)
    expected = float(stats.mstats.trimmed_mean(values, limits)), float(low), float(high)
    assert trimmed_mean(values.tolist()) == pytest.approx(expected)


@pytest.mark.parametrize("count", [LEAST, 12, 20, 60])
def test_the_interval_has_its_level(count: int) -> None:
    random, hits = np.random.default_rng(count), 0
    for _ in range(2000):
        _, low, high = trimmed_mean(random.normal(1, 2, count).tolist())
        hits += low < 1 < high
    assert 0.92 < hits / 2000 < 0.98


@pytest.mark.parametrize("disturbed", [10.0, -10.0, 1e9])
def test_one_disturbed_value_hardly_moves_it(disturbed: float) -> None:
    values = [0.1, -0.12, 0.04, -0.06, 0.09, -0.03, 0.0]
    mean, low, high = trimmed_mean([*values, disturbed])
    assert abs(mean) < 0.05
    assert high - low < 0.4
