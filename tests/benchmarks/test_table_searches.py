"""Searches that benchmarks compare on tables of placements."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import optuna
import pytest

METHODS = [
    "ours", "tpe", "tpe-group", "auto", "tpe-asha", "tpe-pasha", "stock", "gp",
    "random", "random-shrunk", "random-model",
]  # fmt: skip


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    level = optuna.logging.get_verbosity()
    yield
    optuna.logging.set_verbosity(level)


@pytest.mark.parametrize("name", METHODS)
def test_each_search_counts_trainings_and_returns_a_tried_placement(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench_placements import METHODS as ALL
    from bench_placements import regret, regrets
    from planted import KINDS, Table

    assert list(ALL) == METHODS
    if name == "auto":
        pytest.importorskip("optunahub")
    table = Table(KINDS["light"], 3)
    steps = list(takewhile(lambda step: step[0] <= 12, ALL[name].search(table, 3)))
    costs = [spent for spent, _ in steps]
    assert all(later - before > 0 for before, later in pairwise(costs))
    assert (any(spent % 1 > 0.01 for spent in costs)) == ALL[name].early
    assert all(0 <= regret(table, params) < 10 for _, params in steps)
    monkeypatch.setitem(ALL, name, replace(ALL[name], most=12))
    values = regrets((name, "light", 3))
    assert len(values) == 3, "after 4, 8 and 12 trainings"
    assert np.isfinite(values).all()
