"""The simulation of verdicts on a finalist that trains longer than the baseline."""

from functools import partial
from pathlib import Path

import pytest


def test_a_longer_finalist_gets_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import bench_judge

    case = partial(bench_judge.Case, ratio=1.1, time_noise=0.003, buys=2.0)
    cells = {effect: bench_judge.rates(case(effect=effect), (8,), 10) for effect in (0.0, 20.0)}
    assert cells[20.0]["earlier"] == {"better": 0, "cannot tell": 1, "trainings": 16}
    assert cells[20.0]["today"] == {"better": 1, "cannot tell": 0, "trainings": 24}
    assert cells[0.0]["today"]["better"] == 0, "the baseline gains as much by more time"
    assert cells[0.0]["earlier"]["cannot tell"] > 0.5
