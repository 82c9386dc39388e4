import numpy as np
import pytest

from automl.export.checks import BATCH, ROUNDS, measure_speed
from automl.task.deployment import Arrays, Run
from automl.training.clock import LEAST, SECONDS


class Clock:
    """Fake clock that only advances when a model runs, by 1 ms and `each` ms per input."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[tuple[float, int]] = []

    def model(self, each: float) -> Run:
        def run(inputs: Arrays) -> Arrays:
            self.now += 1e-3 * (1 + each * len(inputs["x"]))
            self.ran.append((each, len(inputs["x"])))
            return inputs

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("automl.training.clock.time.perf_counter", lambda: clock.now)
    return clock


def test_latency_and_throughput(clock: Clock) -> None:
    speed = measure_speed(clock.model(1), {"x": np.zeros((100, 3))})
    assert speed.latency == pytest.approx(2)
    assert speed.throughput == pytest.approx(1e3 * BATCH / (1 + BATCH))
    assert speed.batch == BATCH
    assert clock.ran.count((1, 1)) == 1 + ROUNDS


def test_slow_models_are_run_a_few_times(clock: Clock) -> None:
    measure_speed(clock.model(1e3 * SECONDS), {"x": np.zeros((2, 3))})
    assert clock.ran == [(1e3 * SECONDS, count) for count in (1, 2) for _ in range(1 + LEAST)]


def test_fewer_inputs_than_a_batch(clock: Clock) -> None:
    assert measure_speed(clock.model(1), {"x": np.zeros((7, 3))}).batch == 7
