"""Rate of `better` in simulated confirmations in which attention has no effect."""

import os
from dataclasses import replace

import numpy as np
import pytest

from automl.judge.design import COMMANDS
from automl.judge.judge import judge
from automl.judge.protocol import SELECTION
from automl.judge.scores import Scores, TrainingCost
from automl.judge.variants import Variant, best_validated
from search.record import Role
from tests.helpers.confirm_cases import SSA, config, design

SEEDS, EXPERIMENTS = 8, 250 if os.environ.get("AUTOML_LONG") else 30
OWN = design(equal="none", chance=None, margin=0, kind=COMMANDS)


def simulate(spread: float, noise: float, generator: np.random.Generator) -> bool:
    """Return whether a search and a confirmation call attention better, which is the identity here.

    Four plain configurations compete in the search, by one validation score each. The finalist has the
    hyperparameters of the first, the published ones, which are the best of them. Scores are off by `noise`
    points with each seed, and the configurations are `spread` points apart.
    """
    quality = spread * np.sort(generator.normal(size=4))[::-1]
    scores = {f"plain {i}": 70 + quality[i] + noise * generator.normal(size=SEEDS) for i in range(4)}
    scores["ssa"] = 70 + quality[0] + noise * generator.normal(size=SEEDS)
    searched = np.argsort(-(quality + noise * generator.normal(size=4)))
    candidates = [Variant(name=f"plain {i}", role=Role.BASELINE, config=config()) for i in (*searched[:3], 0)]
    validation = {
        variant.name: scores[variant.name] + noise * generator.normal(size=SEEDS) for variant in candidates
    }
    selection = {name: values[:SELECTION].tolist() for name, values in validation.items()}
    baseline = best_validated(candidates, selection)
    own = [replace(candidates[-1], role=Role.PLAIN)] if candidates[-1].name != baseline.name else []
    finalist = Variant(name="ssa", role=Role.FINALIST, config=config(SSA), plain=candidates[-1].name)
    trained = {
        name: Scores(
            scores=dict(enumerate((values / 100).tolist(), start=1)),
            costs={seed: TrainingCost(steps=1, seconds=1.0) for seed in range(1, SEEDS + 1)},
        )
        for name, values in scores.items()
    }
    return judge(design(SEEDS), [baseline, finalist, *own], trained).final == "better"


SETTINGS = [(2, 2), (2, 8), (8, 2), (5, 5), (8, 8), (3, 6), (6, 3), (8, 4)]


def test_a_noisily_chosen_baseline_makes_no_winner():
    """In 240 searches, or 2,000."""
    generator = np.random.default_rng(0)
    claims = [simulate(spread, noise, generator) for spread, noise in SETTINGS for _ in range(EXPERIMENTS)]
    assert np.mean(claims) <= 0.05


@pytest.mark.parametrize("least", [-2.0, -1.0, 0.0])
@pytest.mark.parametrize("side", ["ssa", "baseline"])
def test_a_run_that_is_tried_again_until_it_is_lucky_makes_no_winner(side, least):
    """Neither a candidate that fails below a score, nor a baseline that fails above one."""
    generator, claims, sign = np.random.default_rng(1), 0, 1 if side == "ssa" else -1
    variants = [
        Variant(name="baseline", role=Role.BASELINE, config=config()),
        Variant(name="ssa", role=Role.FINALIST, config=config(SSA)),
    ]
    for _ in range(300):
        drawn, attempts = generator.normal(size=(2, 10)), {}
        for i, score in enumerate(drawn[1]):
            while sign * score < least:
                score = generator.normal()
                attempts[i + 1] = attempts.get(i + 1, 0) + 1
            drawn[1, i] = score
        scored = {
            name: Scores(scores=dict(enumerate(row.tolist(), start=1)))
            for name, row in zip(("baseline", "ssa")[::sign], drawn, strict=True)
        }
        scored[side] = replace(scored[side], failed_attempts=attempts)
        claims += judge(OWN, variants, scored).final == "better"
    assert claims <= 0.04 * 300
