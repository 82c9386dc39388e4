"""The table of recorded trainings on which searches are simulated."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optuna
import pytest

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
