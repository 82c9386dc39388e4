"""The draws that checks share, and estimates of the size of spaces that can be counted by hand."""

from dataclasses import replace

import optuna
import pytest

from search.config import TrialConfig
from search.drawn import Drawn
from search.space import Space, draw_randomly
from search.spaces import SPACES
from tests.helpers.search_cases import draw


def even(trial: optuna.Trial) -> TrialConfig:
    trial.suggest_categorical("a", ["x", "y", "z"])
    trial.suggest_float("b", 0.0, 0.4, step=0.1)
    trial.suggest_int("c", 1, 8, log=True)
    trial.suggest_float("d", 0.0, 1.0)
    return TrialConfig()


def choosy(trial: optuna.Trial) -> TrialConfig:
    """Accept 45 of the 100 pairs."""
    if trial.suggest_int("a", 1, 10) >= trial.suggest_int("b", 1, 10):
        raise optuna.TrialPruned
    return TrialConfig()


def lopsided(trial: optuna.Trial) -> TrialConfig:
    """Draw from a tree with one leaf on one side and 1 + 50 + 20 on the other."""
    if trial.suggest_categorical("deep", [False, True]):
        kind = trial.suggest_int("kind", 0, 2)
        if kind == 1:
            trial.suggest_int("many", 1, 50)
        if kind == 2:
            trial.suggest_float("x", 0, 1)
            trial.suggest_float("y", 0, 1, log=False)
            trial.suggest_int("some", 1, 20)
    return TrialConfig()


@pytest.mark.parametrize(
    ("function", "combinations", "continuous"),
    [(draw, 9, 0), (even, 120, 1), (choosy, 45, 0), (lopsided, 72, 2)],
)
def test_size(function: object, combinations: int, continuous: int) -> None:
    size = Drawn(Space(name="s", draw=function, baseline={}, summary="")).measure_size(1000)  # type: ignore[arg-type]
    assert size.continuous == continuous
    assert size.error == 0 if function is even else 0 < size.error < 0.1 * combinations
    assert size.combinations == pytest.approx(combinations, abs=max(1e-9, 3 * size.error))


def test_checks_share_draws() -> None:
    calls = []
    digits = SPACES["digits"]

    def count(trial: optuna.Trial) -> TrialConfig:
        calls.append(trial)
        return digits.draw(trial)

    drawn = Drawn(replace(digits, draw=count))
    assert drawn.has_placements
    assert drawn.fingerprint == Drawn(digits).fingerprint
    assert not drawn.baseline.model.placement
    assert len(calls) < 120
    before = len(calls)
    assert drawn.configs(50) == [config for _, config in draw_randomly(digits, 50)]
    assert len(calls) == before
