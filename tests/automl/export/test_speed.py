import numpy as np
import pytest

from automl.export.checks import BATCH, ROUNDS, measure_speed
from automl.task.deployment import Arrays, Run


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
