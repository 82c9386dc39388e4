"""The prior of the model of placements: effects of measured harm, their storage, and use by the sampler."""

from pathlib import Path

import optuna
import pytest
from test_placement_sampler import Drawn, draw, search

from automl.base.errors import InputError
from search.config import TrialConfig
from search.placement_effects import (
    ATTRIBUTE,
    Effect,
    IndexedModule,
    IndexedPlacement,
    Prior,
    Term,
    parse_placement,
    read_prior,
    sensitivity_effects,
    write_prior,
)
from search.placement_posterior import estimate_posterior
from search.placement_sampler import PlacementSampler
from search.space import Space
from tests.helpers.search_cases import ask_trial, make_engine, make_plan, make_study

HARM = [{"a": 0.0, "b": 3.0}, {"a": 1.0, "b": 5.0}]


def at(*modules: tuple[int, str]) -> IndexedPlacement:
    return IndexedPlacement("", tuple(IndexedModule(*module) for module in modules))


def deep(drawn: Drawn) -> float:
    """Return the score of a placement in which type `b` and the later half of six sites are better."""
    return sum(2.0 * (kind == "b") + 2.0 * (site >= 3) for site, kind in drawn)


def known() -> Prior:
    """Return the effects of harm that agrees with `deep`."""
    harm = [{kind: -deep([(site, kind)]) for kind in "ab"} for site in range(6)]
    return sensitivity_effects(harm, [at((site, kind)) for site in range(6) for kind in "ab"])


def test_harm_lowers_scores_of_unit_deviation() -> None:
    effects = sensitivity_effects(HARM, [at((0, "a")), at((0, "b"), (1, "a"))])  # predicted: 0 and -4
    cells = {(0, "a"): 0.0, (0, "b"): -1.5, (1, "a"): -0.5, (1, "b"): -2.5}
    assert effects == {Effect(Term.CELL, ("", *cell)): value for cell, value in cells.items()}


@pytest.mark.parametrize("harm", [[], HARM[:1], [HARM[0], {"b": 1.0}], [HARM[0], {"a": float("nan")}]])
def test_harm_of_other_layers_or_types_predicts_nothing(harm: list[dict[str, float]]) -> None:
    assert not sensitivity_effects(harm, [at((0, "a")), at((0, "b"), (1, "a"))])


def test_a_study_keeps_effects() -> None:
    study = optuna.create_study()
    assert read_prior(study) == {}
    write_prior(study, known())
    assert read_prior(study) == known()


@pytest.mark.parametrize("value", [3, [["a", 1.0]], [[["", 0, "a"], float("nan")]]])
def test_damaged_effects_are_rejected(value: object) -> None:
    study = optuna.create_study()
    study.set_user_attr(ATTRIBUTE, value)
    with pytest.raises(InputError, match=ATTRIBUTE):
        read_prior(study)


def test_the_first_trials_are_what_the_prior_predicts(tmp_path: Path) -> None:
    """The scheduler draws before any trial has ended. Each site and type alone is rarely drawn by chance."""

    def draw_config(trial: optuna.Trial) -> TrialConfig:
        draw(trial)
        return TrialConfig()

    counts = []
    for number, prior in enumerate(({}, known())):
        (tmp_path / str(number)).mkdir()
        study = make_study(tmp_path / str(number))
        write_prior(study, prior)
        space = Space(name="s", draw=draw_config, baseline={"modules": 0}, summary="")
        scheduler = make_engine(study, space, make_plan(20, baseline_share=0.0), PlacementSampler(0))
        for _ in range(20):
            ask_trial(scheduler)
        placements = [parse_placement(trial.params) for trial in study.trials]
        modules = [module for placement in placements if placement for module in placement.modules]
        counts.append(sum(module.type == "b" and module.site >= 3 for module in modules))
    assert counts[1] > 2 * counts[0]


def test_the_coefficient_follows_the_scores() -> None:
    study = search(deep, 30, seed=1, noise=0.5)
    assert estimate_posterior(study, margin=0.5).coefficient is None
    write_prior(study, known())
    coefficient = estimate_posterior(study, margin=0.5).coefficient
    assert coefficient is not None
    mean, low, high = coefficient
    assert low < mean < high
    assert 0.3 < mean < 1.5
