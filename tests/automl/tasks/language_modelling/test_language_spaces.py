"""Spaces of hybrid decoders: kinds of layers, baselines and controls."""

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from automl.base.errors import InputError
from automl.tasks.language_modelling import LanguageModel
from automl.tasks.language_modelling.space import KINDS, interleave, interleaved_control, uniform_interleaving
from search.config import TrialConfig
from search.placement_model import EffectDraw
from search.placement_planner import PlacementChoices, Planner
from search.space import SPACES, Space, draw_randomly

NAMES = ("recall", "hybrid")
DRAWS = 60
LAYERS = {"learning_rate": 5e-3, "weight_decay": 0.1, "schedule": "one-cycle", "window": 4, "batch_size": 64}


def kinds_of(config: TrialConfig | None) -> list[str]:
    assert isinstance(config.model, LanguageModel)
    return config.model.kinds


def kinds_drawn(space: Space) -> list[list[str]]:
    return [kinds_of(config) for _, config in draw_randomly(space, DRAWS)]


def name(**fixed: Any) -> str:
    trial: Any = optuna.trial.FixedTrial({**LAYERS, **fixed})
    return SPACES["recall"](trial).model.placement_name(options=False)


@pytest.mark.parametrize("called", NAMES)
def test_a_model_of_one_kind_is_a_baseline(called: str) -> None:
    space = SPACES[called]
    for _, config in draw_randomly(space, DRAWS):
        uniform = space.as_baseline(config)
        assert len(set(kinds_of(uniform))) == 1
        assert space.as_baseline(uniform) == uniform
        assert (uniform == config) == (len(set(kinds_of(config))) == 1)
        assert uniform.training == config.training


@pytest.mark.parametrize("full", [0, 1, 3, 6])
def test_the_number_of_full_layers_can_be_fixed(full: int) -> None:
    drawn = kinds_drawn(SPACES["hybrid"].with_full(full))
    assert {kinds.count("full") for kinds in drawn if len(set(kinds)) > 1} <= {full}
    assert any("full" in kinds for kinds in drawn) == (full > 0)
    assert not any(set(kinds) == {"full"} for kinds in drawn) or full == 6


def test_controls_and_names_of_hybrids() -> None:
    space = replace(SPACES["hybrid"], controls=lambda config: {})
    assert space.with_full(1).controls is space.with_attention(["linear"]).controls is space.controls
    assert name(uniform=False, modules=1, site1=0, type1="sliding") == "sliding, full"
    assert name(uniform=True, kind="linear") == "linear x 2"
    with pytest.raises(InputError, match="--full is for hybrid decoders; leave it out with --space digits"):
        SPACES["digits"].with_full(1)
    drawn = [config for _, config in draw_randomly(SPACES["hybrid"], DRAWS) if config]
    for config in drawn:
        assert bool(interleaved_control(config)) == ("full" in kinds_of(config))
    space = SPACES["hybrid"]
    for _, config in draw_randomly(space, DRAWS):
        assert config is not None
        if not config.model.placement:
            continue
        kinds, control = kinds_of(config), kinds_of(uniform_interleaving(config))
        assert control.count("full") == kinds.count("full")
        assert len(set(control) - {"full"}) == 1


def test_draws_and_plans() -> None:
    assert {kind for kinds in kinds_drawn(SPACES["hybrid"]) for kind in kinds} == {"full", *KINDS}
    two = SPACES["hybrid"].with_attention(["gated-delta", "shortconv"])
    assert {kind for kinds in kinds_drawn(two) for kind in kinds} == {"full", "gated-delta", "shortconv"}
    assert two.types == ("gated-delta", "shortconv")
    space = SPACES["hybrid"].with_full(2)
    models = [kinds_of(space(optuna.trial.FixedTrial(dict(p)))) for p in space.free()]
    counts, types = [kinds.count("full") for kinds in models], len(space.types or ())
    assert counts == [2] * (types + 3) + [0] * (len(counts) - types - 3)
    rules = [[i for i, kind in enumerate(kinds) if kind == "full"] for kinds in models[: types + 3]]
    assert rules == [[2, 5]] * types + [[4, 5], [0, 1], [2, 3]]
    choices = PlacementChoices(prefix="", sites=3, types=["linear"], options={}, most=3, least=2)
    random = np.random.default_rng(0)
    plans = [Planner(EffectDraw(None, np.empty(0), random), choices).best([], random) for _ in range(20)]
    assert {len(plan.modules) for plan in plans} == {2, 3}


@pytest.mark.parametrize(
    ("depth", "full", "expected"),
    [(6, 1, [5]), (6, 2, [2, 5]), (8, 2, [3, 7]), (4, 4, [0, 1, 2, 3]), (5, 2, [1, 4])],
)
def test_a_uniform_interleaving_has_equal_distances(depth: int, full: int, expected: list[int]) -> None:
    assert interleave(depth, full) == expected
