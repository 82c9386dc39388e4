"""Latencies of modules for a file of costs."""

import pytest
import torch
from torch import nn

from automl.config.runtime import Runtime
from automl.costs.exported import MOST_REPEATS, _Latency


def test_a_measurement_that_other_load_disturbed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [
        [1.0, 1.5],
        [3.0, 9.0],
        [1.0, 1.25],
        [1.0, 0.9],
        [2.0, 2.5],
        *[[3.0, 9.0]] * (MOST_REPEATS - 1),
    ]
    monkeypatch.setattr("automl.costs.profile.measure_latency", lambda *_: 1.0)
    monkeypatch.setattr("automl.costs.profile.measure_latencies", lambda *_: measured.pop(0))
    latency = _Latency(nn.Identity(), torch.ones(1), Runtime(device=torch.device("cpu")))
    model = nn.Identity()
    assert latency.measure_added(model) == 0.5
    assert latency.measure_added(model) == 0.25
    assert latency.measure_added(model) == 0, "a latency is never below 0"
    assert latency.plain == 1.0
    assert latency.measure_added(model) == 0.5, "on a machine that stays slow, the fastest counts"
