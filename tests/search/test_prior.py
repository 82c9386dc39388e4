"""Effects of earlier searches: transfer to other sites, storage in a study, and use by the sampler."""

from pathlib import Path

import optuna
import pytest
from search_cases import ask_trial, make_engine, make_plan, make_study
from test_placement_sampler import Drawn, draw, search

from automl.base.errors import InputError
from search.config import TrialConfig
from search.placement_effects import Effect, Term, parse_placement
from search.placement_posterior import earlier_coefficients
from search.placement_sampler import PlacementSampler, fit_model
from search.prior import ATTRIBUTE, count_sites, read_prior, transfer_effects, write_prior
from search.space import Space


def deep(drawn: Drawn) -> float:
    """Return the score of a placement in which type `b` and the later half of six sites are better."""
    return sum(2.0 * (kind == "b") + 2.0 * (site >= 3) for site, kind in drawn)


@pytest.fixture(scope="module")
def old() -> optuna.Study:
    return search(deep, 40, sampler=optuna.samplers.RandomSampler(0), noise=0.5)


def test_sites_are_counted_from_the_ranges_of_trials(old: optuna.Study) -> None:
    assert count_sites(old.trials) == {"": 6}
    assert count_sites(search(deep, 10, prefix="net.", sites=4, most=3).trials) == {"net.": 4}


def test_effects_of_sites_are_interpolated_by_depth(old: optuna.Study) -> None:
    model = fit_model(old)
    assert model is not None
    same = transfer_effects(model, {"": 6}, {"": 6})
    for effect in (Effect(Term.TYPE, "b"), Effect(Term.SITE, ("", 3)), Effect(Term.CELL, ("", 5, "b"))):
        mean, _ = model.predict([{effect: 1.0}])
        assert same[effect] == pytest.approx(mean[0] / model.scale)
    fewer = transfer_effects(model, {"": 6}, {"net.": 3})
    assert fewer[Effect(Term.SITE, ("net.", 0))] == same[Effect(Term.SITE, ("", 0))]
    between = (same[Effect(Term.SITE, ("", 2))] + same[Effect(Term.SITE, ("", 3))]) / 2
    assert fewer[Effect(Term.SITE, ("net.", 1))] == pytest.approx(between)
    assert fewer[Effect(Term.SITE, ("net.", 2))] == same[Effect(Term.SITE, ("", 5))]


def test_a_study_keeps_effects() -> None:
    study = optuna.create_study()
    assert read_prior(study) == {}
    effects = {
        Effect("cost"): 0.5,
        Effect(Term.TYPE, "a"): -1.0,
        Effect(Term.SITE, ("net.", 3)): 0.25,
        Effect(Term.OPTION, ("a", "ks", 3)): 1.5,
        Effect("pair", ("a", "b")): 2.0,
    }
    write_prior(study, {"old": effects, "older": {}})
    assert read_prior(study) == {"old": effects, "older": {}}


@pytest.mark.parametrize(
    "value", [3, {"old": 3}, {"old": [["type", ["a"]]]}, {"old": [["type", ["a"], float("nan")]]}]
)
def test_damaged_effects_are_rejected(value: object) -> None:
    study = optuna.create_study()
    study.set_user_attr(ATTRIBUTE, value)
    with pytest.raises(InputError, match=ATTRIBUTE):
        read_prior(study)


def test_the_first_trials_are_what_the_earlier_search_predicts(tmp_path: Path, old: optuna.Study) -> None:
    """The scheduler draws before any trial has ended. Each site and type alone is rarely drawn by chance."""

    def draw_config(trial: optuna.Trial) -> TrialConfig:
        draw(trial)
        return TrialConfig()

    model = fit_model(old)
    assert model is not None
    counts = []
    for number, prior in enumerate(({}, {"old": transfer_effects(model, {"": 6}, {"": 6})})):
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


def test_coefficients_follow_the_new_scores(old: optuna.Study) -> None:
    model = fit_model(old)
    assert model is not None
    study = search(deep, 0)
    write_prior(study, {"old": transfer_effects(model, {"": 6}, {"": 6})})
    assert earlier_coefficients(study) == {}
    for trial in search(deep, 30, seed=1, noise=0.5).trials:
        study.add_trial(trial)
    mean, low, high = earlier_coefficients(study)["old"]
    assert low < mean < high
    assert 0.6 < mean < 1.5
