"""The recorded table of associative recall, and searches on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from automl.tasks.language_modelling.config import FULL


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import bench_recall

    bench_recall.scores.cache_clear()
    yield
    bench_recall.scores.cache_clear()


def test_each_placement_with_one_full_layer_is_recorded_once() -> None:
    import record_recall

    placements = record_recall.placements()
    assert len(set(placements)) == len(placements) == 6 * 2**5
    assert {placement.split().count(FULL) for placement in placements} == {1}
    config = record_recall.config(f"linear {FULL} sliding sliding sliding sliding", seed=3)
    assert [*config.model.placement] == [f"block{i}.mixer" for i in (1, 3, 4, 5, 6)]


def test_a_training_shows_each_seed_once_before_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    import bench_recall
    import optuna
    import record_recall

    rows = [
        {"placement": p, "seed": seed, "accuracy": (p.split().index(FULL) + seed) / 10}
        for p in record_recall.placements()
        for seed in range(record_recall.SEEDS)
    ]
    monkeypatch.setattr(record_recall, "read", lambda: rows)
    table = bench_recall.Table(seed=0)
    placement = table.draw(optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask())
    full = ({*range(6)} - {module.site for module in placement.modules}).pop()
    shown = [table.score(placement, {}) for _ in range(6)]
    assert sorted(shown[:3]) == sorted(shown[3:]) == pytest.approx([10 * (full + seed) for seed in range(3)])
    assert table.regret(placement) == pytest.approx(10 * (5 - full))
