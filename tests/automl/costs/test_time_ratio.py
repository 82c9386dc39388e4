"""The ratio of two epochs' times, with times that are given; real ones are measured, and none is asserted."""

import gc
import random
import weakref
from collections.abc import Callable
from itertools import cycle

import pytest
from automl_cases import Regression, opened

from attention import Spec
from automl.costs import time_ratio
from automl.costs.time_ratio import (
    BELIEVED,
    LEAST,
    Epoch,
    TimeRatio,
    Timings,
    interval,
    measure_time_ratio,
    own_time_ratio,
)

Clock = Callable[[float, float, float], None]


@pytest.mark.parametrize("count", [5, 6, 9, 15, 31])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    drawn = random.Random(count)
    held, tries = 0, 3000
    for _ in range(tries):
        middle, low, high = interval([drawn.expovariate(1) for _ in range(count)])
        assert low <= middle <= high
        held += low <= 0.6931471805599453 <= high
    expected = 0.9375 if count == 5 else 0.95
    assert held / tries > expected - 0.015
    assert held / tries < 0.99


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A machine on which ours takes `ratio` times as long as the other, give or take `noise`.

    Each look at the clock of measuring is `step` seconds later.
    """

    def set_clock(ratio: float, noise: float = 0.0, step: float = 1.0) -> None:
        drawn, now = random.Random(1), iter(range(10**9))

        def seconds_of(self: Epoch, part: object) -> float:
            ours = self.task.config.seed == 1
            return (ratio if ours else 1.0) * drawn.lognormvariate(0, noise)

        monkeypatch.setattr(Epoch, "seconds_of", seconds_of)
        monkeypatch.setattr(time_ratio, "elapsed", lambda runtime: step * next(now))

    return set_clock


def measured(timings: Timings | None = None, *, at_least_one: bool = False, **training: int) -> TimeRatio:
    """Of a task of ten steps and eight passes an epoch, for which no clock runs."""
    ours, theirs = Regression(**training), Regression()
    ours.config = ours.config.change(seed=1)
    return measure_time_ratio(ours, theirs, timings or Timings(), at_least_one=at_least_one)


def test_a_quiet_machine_is_believed_at_once(clock: Clock) -> None:
    clock(1.25)
    timings = Timings()
    found = measured(timings)
    assert (found.ratio, found.low, found.high) == pytest.approx((1.25, 1.25, 1.25))
    assert not found.counted
    assert len(timings.steps) == LEAST
    # Ten steps and five passes, of which the other model's take a second each.
    assert found.epoch == pytest.approx(1.25 * 15)
    assert found.validation == pytest.approx(5 / 15)


def test_measuring_goes_on_until_the_interval_is_narrow(clock: Clock) -> None:
    clock(1.25, noise=0.05, step=0.0)
    timings = Timings()
    found = measured(timings)
    assert len(timings.steps) > LEAST
    assert found.high - found.ratio <= 0.02 * found.ratio
    assert found.ratio == pytest.approx(1.25, rel=0.03)


def test_a_restless_machine_is_not_believed_and_the_next_trial_goes_on(clock: Clock) -> None:
    clock(1.25, noise=0.2)
    timings, counts = Timings(), []
    while (found := measured(timings)).counted:
        assert max(found.high / found.ratio, found.ratio / found.low) > 1 + BELIEVED
        assert found.low <= found.ratio <= found.high
        counts.append(len(timings.steps))
        clock(1.25, noise=0.2 / (1 + len(counts)))  # it calms down
        assert len(timings.work) == 2, "which is counted once"
    assert counts == sorted(set(counts)), "each adds to what there was"
    assert len(timings.steps) > counts[-1] > LEAST
    assert found.ratio == pytest.approx(1.25, rel=0.05)


def test_with_modules_added_no_model_is_faster(clock: Clock) -> None:
    clock(0.7)
    found = measured(at_least_one=True)
    assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)
    assert measured().ratio == pytest.approx(0.7), "another model may well be"


def test_time_is_of_each_image(clock: Clock) -> None:
    """Steps of half the images that take as long make an epoch of twice the time."""
    clock(1.0)
    assert measured(batch_size=4).ratio == pytest.approx(2.0)
    assert measured(batch_size=16).ratio == pytest.approx((5 + 3) / 15)


def test_orders_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that gets slower and slower, the second is not always the same one."""
    speeds = cycle([1.0, 2.0])
    monkeypatch.setattr(Epoch, "seconds_of", lambda self, part: next(speeds))
    monkeypatch.setattr(time_ratio, "ALLOWED", 0.0)
    timings = Timings()
    measure_time_ratio(Regression(), Regression(), timings)
    assert timings.steps[:4] == [(1.0, 2.0), (2.0, 1.0)] * 2


SSA = {"stage2.block1": Spec("ssa")}


def test_a_model_of_far_more_work_has_a_pace_far_above_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the width is some ten times the work; a loaded machine slows both."""
    monkeypatch.setattr(time_ratio, "ALLOWED", 0.0)
    wide, narrow = (opened(model={"options": {"width": width}}, data={"size": 32}) for width in (1.0, 0.25))
    found = measure_time_ratio(wide, narrow, Timings())
    assert found.ratio > 1.4
    assert found.low <= found.ratio <= found.high
    assert 0 < found.validation < 1
    assert found.epoch > own_time_ratio(narrow).epoch > 0


def test_what_was_measured_is_gone_at_once() -> None:
    """A training that begins after it has the memory, and nothing has to look for cycles."""
    epoch = Epoch(opened())
    epoch.work()
    model = weakref.ref(epoch.state.model)
    gc.disable()
    try:
        del epoch
        assert model() is None
    finally:
        gc.enable()


def test_the_work_of_an_epoch_is_that_of_its_steps_and_passes() -> None:
    plain, attended = Epoch(opened()), Epoch(opened(model={"placement": SSA}))
    assert attended.work().operators > plain.work().operators
    assert attended.work().flops > plain.work().flops
