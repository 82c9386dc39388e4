"""The table of recorded trainings that searches are replayed on."""

from pathlib import Path
from types import ModuleType

import numpy as np
import optuna
import pytest

SEEDS, IMAGES = 4, 200


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Of trainings that are right for so many images; the seed after the last one is not whole."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import nette
    import recorded

    hits = np.random.default_rng(0).integers(80, 120, (26, SEEDS))
    rows = [
        {
            "placement": name, "seed": seed, "at": 0, "losses": bytes(IMAGES),
            "hits": np.packbits(np.arange(IMAGES) < hits[i, seed]).tobytes(),
        }
        for i, name in enumerate(recorded.names())
        for seed in range(SEEDS)
    ]  # fmt: skip
    rows.append({**rows[0], "seed": SEEDS})
    monkeypatch.setattr(nette, "read", lambda: rows)
    recorded.scores.cache_clear()
    assert np.allclose(recorded.scores(recorded.RECORDINGS["nette"]), 100 * hits / IMAGES)
    return recorded


def test_trainings_show_one_half_of_the_seeds_and_the_other_one_judges(recorded: ModuleType) -> None:
    scratch = recorded.RECORDINGS["nette"]
    assert recorded.seeds(scratch) == SEEDS
    table, scores = recorded.Table(scratch, 3), recorded.scores(scratch)
    assert table.shared_training(table.draw(optuna.trial.FixedTrial({"modules": 0}))) is None
    trial = optuna.trial.FixedTrial({"modules": 1, "site1": 2, "type1": "sagan"})
    placement = table.draw(trial)
    row = recorded.names().index("sagan@stage2.block2")
    shown = [table.score(placement, {}) for _ in range(4)]
    assert shown[:2] == shown[2:]
    rest = list(scores[row])
    for value in shown[:2]:
        rest.remove(value)
    assert table.signed_value(placement) == pytest.approx(np.mean(rest))
    plain = table.draw(optuna.trial.FixedTrial({"modules": 0}))
    every = [table.signed_value(plain)]
    for site in range(5):
        for kind in recorded.nette.TYPES:
            drawn = {"modules": 1, "site1": site, "type1": kind}
            every.append(table.signed_value(table.draw(optuna.trial.FixedTrial(drawn))))
    assert table.best == pytest.approx(max(every))
    assert table.spread >= 0


def test_what_a_table_can_show_lies_between_the_truth_and_blindness(
    recorded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = recorded.RECORDINGS["nette"]
    noise = recorded.scores(scratch) - recorded.scores(scratch).mean(axis=1, keepdims=True)
    monkeypatch.setattr(recorded, "scores", lambda recording: noise)
    same = recorded.limits(scratch, tables=300)  # all are worth the same: to know the truth helps nothing
    assert same["known"]["mean"] == pytest.approx(same["any"]["mean"], rel=0.15)
    assert same["means"]["mean"] == pytest.approx(same["any"]["mean"], rel=0.15)
    monkeypatch.setattr(recorded, "scores", lambda recording: noise + 20 * np.arange(26)[:, None])
    apart = recorded.limits(scratch, tables=300)
    assert apart["known"]["mean"] <= apart["means"]["mean"] < 0.02 * apart["any"]["mean"]
    assert apart["any"]["low"] > same["any"]["high"]


def test_in_shared_trainings_a_training_is_compared_with_the_plain_one(
    recorded: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = np.random.default_rng(1).integers(10, 200, (26, SEEDS, IMAGES)).astype(np.uint8)
    rows = [
        {"placement": name, "seed": seed, "at": 6, "losses": losses[i, seed].tobytes(), "hits": b""}
        for i, name in enumerate(recorded.names())
        for seed in range(SEEDS)
    ]
    monkeypatch.setattr(recorded.nette, "read", lambda: rows)
    shared_trainings = recorded.RECORDINGS["nette-shared"]
    mean = losses.mean(axis=2) / 16
    assert np.allclose(recorded.scores(shared_trainings), 1000 * (mean[0] - mean))
    table = recorded.Table(shared_trainings, 0)
    one, other = (
        table.draw(optuna.trial.FixedTrial({"modules": 1, "site1": 0, "type1": kind}))
        for kind in ("ssa", "sagan")
    )
    plain = table.draw(optuna.trial.FixedTrial({"modules": 0}))
    told = []
    for placement in (one, other, one, one):
        told.append(table.shared_training(placement))
        table.score(placement, {})
    assert told == [0, 1, 1, 0], "each placement in each shared partial training, and these as often"
    assert table.score(plain, {}) == 0
    worths = [table.signed_value(plain), *(
        table.signed_value(table.draw(optuna.trial.FixedTrial({"modules": 1, "site1": site, "type1": kind})))
        for site in range(5) for kind in recorded.nette.TYPES
    )]  # fmt: skip
    assert (table.best, max(worths)) == (pytest.approx(1), pytest.approx(1))
    assert np.mean(worths) == pytest.approx(0, abs=1e-9)
