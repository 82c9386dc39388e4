"""The table of recorded trainings on which searches are simulated."""

from pathlib import Path
from types import ModuleType

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


def test_trainings_show_one_half_of_the_seeds_and_effects_use_the_other(recorded: ModuleType) -> None:
    scratch = recorded.RECORDINGS["nette"]
    assert recorded.seeds(scratch) == SEEDS
    table, scores = recorded.Table(scratch, 3), recorded.scores(scratch)
    assert table.shared_training(table.draw(optuna.trial.FixedTrial({"modules": 0}))) is None
    trial = optuna.trial.FixedTrial({"modules": 1, "site1": 2, "type1": "sagan"})
    placement = table.draw(trial)
    row = recorded.RECORDINGS["nette"].names.index("sagan@stage2.block2")
    shown = [table.score(placement, {}) for _ in range(4)]
    assert shown[:2] == shown[2:]
    rest = list(scores[row])
    for value in shown[:2]:
        rest.remove(value)
    assert table.effect(placement) == pytest.approx(np.mean(rest))
    plain = table.draw(optuna.trial.FixedTrial({"modules": 0}))
    every = [table.effect(plain)]
    for site in range(5):
        for kind in recorded.nette.TYPES:
            drawn = {"modules": 1, "site1": site, "type1": kind}
            every.append(table.effect(table.draw(optuna.trial.FixedTrial(drawn))))
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
