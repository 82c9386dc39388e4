"""The table of recorded trainings on which searches are simulated."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optuna
import pytest

from automl.tasks.language_modelling import FULL

SEEDS, IMAGES = 4, 200


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module with generated trainings. The seed after the last one is incomplete."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import nette
    import recorded

    hits = np.random.default_rng(0).integers(80, 120, (26, SEEDS))
    rows = [
        {
            "placement": name, "seed": seed, "at": 0, "losses": bytes(IMAGES),
            "hits": np.packbits(np.arange(IMAGES) < hits[i, seed]).tobytes(),
        }
        for i, name in enumerate(recorded.RECORDINGS["nette"].names)
        for seed in range(SEEDS)
    ]  # fmt: skip
    rows.append({**rows[0], "seed": SEEDS})
    monkeypatch.setattr(nette, "read", lambda: rows)
    recorded.scores.cache_clear()
    assert np.allclose(recorded.scores(recorded.RECORDINGS["nette"]), 100 * hits / IMAGES)
    return recorded


def single(table: Any, site: int, kind: str) -> Any:
    """Return the placement of one module."""
    return table.draw(optuna.trial.FixedTrial({"modules": 1, "site1": site, "type1": kind}))


def test_trainings_show_one_half_of_the_seeds_and_effects_use_the_other(recorded: ModuleType) -> None:
    scratch = recorded.RECORDINGS["nette"]
    assert recorded.seeds(scratch) == SEEDS
    table, scores = recorded.Table(scratch, 3), recorded.scores(scratch)
    assert table.shared_training(table.draw(optuna.trial.FixedTrial({"modules": 0}))) is None
    placement = single(table, 2, "sagan")
    row = recorded.RECORDINGS["nette"].names.index("sagan@stage2.block2")
    shown = [table.score(placement, {}) for _ in range(4)]
    assert shown[:2] == shown[2:]
    rest = list(scores[row])
    for value in shown[:2]:
        rest.remove(value)
    assert table.effect(placement) == pytest.approx(np.mean(rest))
    plain = table.draw(optuna.trial.FixedTrial({"modules": 0}))
    every = [table.effect(plain)]
    every += [table.effect(single(table, site, kind)) for site in range(5) for kind in recorded.nette.TYPES]
    assert table.best == pytest.approx(max(every))
    assert table.spread >= 0


def test_regret_of_a_perfect_search_is_between_truth_and_chance(
    recorded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = recorded.RECORDINGS["nette"]
    noise = recorded.scores(scratch) - recorded.scores(scratch).mean(axis=1, keepdims=True)
    monkeypatch.setattr(recorded, "scores", lambda recording: noise)
    same = recorded.limits(scratch, tables=300)  # without effects, to know the truth does not help
    assert same["known"]["mean"] == pytest.approx(same["any"]["mean"], rel=0.15)
    assert same["means"]["mean"] == pytest.approx(same["any"]["mean"], rel=0.15)
    monkeypatch.setattr(recorded, "scores", lambda recording: noise + 20 * np.arange(26)[:, None])
    strong = recorded.limits(scratch, tables=300)
    assert strong["known"]["mean"] <= strong["means"]["mean"] < 0.02 * strong["any"]["mean"]
    assert strong["any"]["low"] > same["any"]["high"]


def test_scores_in_shared_trainings_are_differences_from_plain(
    recorded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = np.random.default_rng(1).integers(10, 200, (26, SEEDS, IMAGES)).astype(np.uint8)
    rows = [
        {"placement": name, "seed": seed, "at": 6, "losses": losses[i, seed].tobytes(), "hits": b""}
        for i, name in enumerate(recorded.RECORDINGS["nette"].names)
        for seed in range(SEEDS)
    ]
    monkeypatch.setattr(recorded.nette, "read", lambda: rows)
    shared_trainings = recorded.RECORDINGS["nette-shared"]
    mean = losses.mean(axis=2) / 16
    assert np.allclose(recorded.scores(shared_trainings), 1000 * (mean[0] - mean))
    table = recorded.Table(shared_trainings, 0)
    ssa, sagan = (single(table, 0, kind) for kind in ("ssa", "sagan"))
    plain = table.draw(optuna.trial.FixedTrial({"modules": 0}))
    numbers = []
    for placement in (ssa, sagan, ssa, ssa):
        numbers.append(table.shared_training(placement))
        table.score(placement, {})
    assert numbers == [0, 1, 1, 0], "each placement in each shared partial training, equally often"
    assert table.score(plain, {}) == 0
    effects = [table.effect(single(table, site, kind)) for site in range(5) for kind in recorded.nette.TYPES]
    effects.append(table.effect(plain))
    assert (table.best, max(effects)) == (pytest.approx(1), pytest.approx(1))
    assert np.mean(effects) == pytest.approx(0, abs=1e-9)


def test_the_smallest_loss_is_the_best_placement_of_other_data(
    recorded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = recorded.RECORDINGS["sensors"]
    rows = [
        {
            "table": "sensors",
            "placement": name,
            "seed": seed,
            "loss": 0.1 * (name != "ssa@stage3.block2") + 1e-6 * (i * (seed + 1) % 7),
        }
        for i, name in enumerate(sensors.names)
        for seed in range(recorded.record_singles.SEEDS)
    ]
    monkeypatch.setattr(recorded.record_singles, "read", lambda: rows)
    table = recorded.Table(sensors, 0)
    best, other = (
        table.draw(optuna.trial.FixedTrial({"modules": 1, "site1": site, "type1": "ssa"})) for site in (4, 0)
    )
    assert table.score(best, {}) - table.score(other, {}) == pytest.approx(100, abs=0.1)
    assert table.best == table.effect(best) == pytest.approx(1)
    assert table.shared_training(best) is None


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


KEYS = ("table", "seed")


def train(work: tuple[str, int]) -> dict[str, Any]:
    table, seed = work
    return {"table": table, "seed": seed, "score": 10.0 * seed}


def test_a_recording_continues_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import recorder

    monkeypatch.setattr(sys, "argv", ["record", "--processes", "1"])
    file = tmp_path / "table.parquet"
    assert recorder.read(file) == []
    earlier = {"table": "b", "seed": 1, "score": -1.0}
    recorder.write(file, [earlier], KEYS)
    recorder.record(None, file, [("b", 1), ("b", 0), ("a", 2)], train, KEYS)
    assert recorder.read(file) == [train(("a", 2)), train(("b", 0)), earlier]


def test_tables_of_singles_have_each_type_at_each_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import record_singles

    for table in record_singles.SITES:
        placements = [
            record_singles.config(table, name, 0).model.placement for name in record_singles.names(table)
        ]
        assert placements.count({}) == 1
        kinds = 6 if table == "lookup" else 5  # with the control
        expected = 1 + kinds * len(record_singles.SITES[table])
        assert len({str(placement) for placement in placements}) == expected
