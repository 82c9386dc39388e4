"""The posterior of placements: planted effects are found, and no effect is reported where there is none."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import optuna
import pytest
from test_placement_sampler import Drawn, draw, search

from automl.base.errors import InputError
from search.class_metrics import ACCURACY
from search.config import TrialConfig
from search.placement_effects import (
    Effect,
    IndexedModule,
    IndexedPlacement,
    Prior,
    Term,
    parse_placement,
    read_prior,
    sensitivity_effects,
    trial_weights,
    write_prior,
)
from search.placement_model import EffectModel
from search.placement_posterior import best_trial, estimate_posterior
from search.placement_sampler import GrowingModel, PlacementSampler, fit_model
from search.record import Role, State, TrialRecord
from search.space import SPACES, Space, draw_randomly
from search.study import EXPECTED, update_expected
from search.trial_scheduler import Plan, select_leaders
from tests.helpers import others_slow
from tests.helpers.search_cases import ask_trial, make_engine, make_plan, make_study


def of_type(kind: str, gain: float) -> Callable[[Drawn], float]:
    return lambda drawn: gain * sum(mine == kind for _, mine in drawn)


def test_a_type_that_is_better_by_construction_is_returned_within_sixteen_trainings() -> None:
    """Each module of one type adds three points. The noise is 1.1 points."""
    result = 0
    for seed in range(10):
        study = search(of_type("b", 3.0), 16, seed=seed, noise=1.1)
        placement = parse_placement(best_trial(study).params)
        result += [module.type for module in placement.modules] == ["b", "b"]
    assert result >= 9


@pytest.mark.slow("fits of the model")
def test_equal_placements_show_no_difference_that_matters() -> None:
    """Use 128 trainings with 1.1 points of noise. No placement is ever called best."""
    ends = []
    for seed in range(2):
        study = optuna.create_study(direction="maximize", sampler=PlacementSampler(seed))
        random = np.random.default_rng(seed)
        for count in range(1, 129):
            trial = study.ask()
            draw(trial)
            study.tell(trial, 1.1 * random.standard_normal())
            if count % 32 == 0:
                result = estimate_posterior(study, margin=0.5)
                if not result.verdict.startswith("not decided"):
                    break
        ends.append(result.verdict.partition(":")[0])
    assert "no difference that matters" in ends
    assert "decided" not in ends


def test_a_difference_is_named_with_its_interval() -> None:
    study = search(of_type("b", 3.0), 40, noise=0.5)
    result = estimate_posterior(study, margin=0.5)
    first = result.placements[0]
    assert [module.type for module in first.placement.modules] == ["b", "b"]
    assert first.low < 6.0 < first.high
    assert result.matters > 0.99
    assert result.noise == pytest.approx(0.5, rel=0.4)
    effects = {(row.term, row.key): row for row in result.effects}
    best = effects[Term.TYPE, "b"]
    assert best.low < best.mean < best.high
    assert all(best.mean > row.mean for row in result.effects if row.term in (Term.SITE, Term.CELL))
    assert best.trials == sum(
        any(m.type == "b" for m in p.modules)
        for t in study.trials
        if (p := parse_placement(t.params)) is not None
    )
    assert sum(row.trials for row in result.placements) == 40
    assert first.near > 0.9
    assert result.verdict.startswith("decided: the first is best, or within 0.5 of it, with")


def test_the_luckiest_trial_is_not_the_best_once_the_model_predicts() -> None:
    study = search(of_type("b", 3.0), 30, noise=0.5)
    assert fit_model(study).predicts()
    assert GrowingModel().expected_scores(study)
    lucky = optuna.trial.create_trial(
        value=6.5,  # what two modules of type b have
        params={"modules": 1, "site1": 5, "type1": "a"},
        distributions={
            "modules": study.trials[0].distributions["modules"],
            "site1": optuna.distributions.IntDistribution(0, 5),
            "type1": optuna.distributions.CategoricalDistribution(["a", "b", "c"]),
        },
    )
    study.add_trial(lucky)
    placement = parse_placement(best_trial(study).params)
    assert {module.type for module in placement.modules} == {"b"}


def test_hyperparameters_are_separated_from_placements() -> None:
    """A placement that was tried with good learning rates only is not better for it."""
    random = np.random.default_rng(0)
    study = optuna.create_study(direction="maximize")
    rates = optuna.distributions.FloatDistribution(0, 1)
    kinds = optuna.distributions.CategoricalDistribution(["a", "b"])
    for i in range(40):
        kind, rate = ("a", 0.25 + 0.5 * random.random()) if i % 2 else ("b", random.random())
        effect = (kind == "b") - 12 * (rate - 0.5) ** 2
        study.add_trial(
            optuna.trial.create_trial(
                value=effect + 0.3 * random.standard_normal(),
                params={"modules": 1, "site1": 0, "type1": kind, "rate": rate},
                distributions={
                    "modules": optuna.distributions.IntDistribution(1, 1),
                    "site1": optuna.distributions.IntDistribution(0, 0),
                    "type1": kinds,
                    "rate": rates,
                },
            )
        )
    first, second = estimate_posterior(study, margin=0.5).placements
    assert first.placement == IndexedPlacement("", (IndexedModule(0, "b"),))
    assert first.mean - second.mean == pytest.approx(1.0, abs=0.4)
    best = best_trial(study).params
    assert best["type1"] == "b"
    assert best["rate"] == pytest.approx(0.5, abs=0.15)


def test_a_study_without_placements() -> None:
    study = optuna.create_study()
    study.ask()
    for call in (best_trial, lambda study_: estimate_posterior(study_, margin=0.5)):
        with pytest.raises(InputError, match="no trial that draws a placement has completed"):
            call(study)  # type: ignore[operator]


Drawing = tuple[optuna.Trial, TrialConfig]


def finished(
    draws: Sequence[Drawing], scores: Sequence[float]
) -> tuple[optuna.Study, dict[int, TrialRecord]]:
    """Return a study with a completed trial for each score, the baseline first, and its records."""
    study = optuna.create_study(direction="maximize")
    study.set_user_attr(EXPECTED, True)
    records: dict[int, TrialRecord] = {}
    for number, ((trial, config), score) in enumerate(zip(draws, scores, strict=False)):
        study.add_trial(
            optuna.trial.create_trial(value=score, params=trial.params, distributions=trial.distributions)
        )
        role = Role.CANDIDATE if number else Role.BASELINE
        records[number] = TrialRecord(number, config, role, State.COMPLETE, [{"accuracy": score}])
    return study, records


@pytest.mark.parametrize("name", others_slow(SPACES, "digits", "hybrid", "ucihar"))
def test_with_few_trials_the_best_score_wins(name: str) -> None:
    """Example: an encoder that scores 0.274 and a baseline of 0.379."""
    plan = Plan(trials=3, budget=1, metric=ACCURACY)
    space = SPACES[name]
    drawn = draw_randomly(space, 4, first=space.baseline)
    draws = [(trial, config) for trial, config in drawn if config is not None]
    for scores in ([0.379, 0.274], [0.274, 0.379], [0.379, 0.274, 0.2], [0.2, 0.379, 0.38]):
        study, records = finished(draws, scores)
        assert len(records) == len(scores)
        update_expected(study, records)
        best, _ = select_leaders(records.values(), plan)
        assert scores[best.number] == max(scores)


@pytest.mark.parametrize("seed", range(3))
def test_errors_of_trials_left_out_are_those_of_models_without_them(seed: int) -> None:
    study = search(of_type("b", 1.0), 12, seed=seed, noise=1.0)
    trials = [(trial_weights(trial), trial.values[0]) for trial in study.trials]
    trials_weights = [weights for weights, _ in trials if weights is not None]
    scores = np.array([score for _, score in trials])
    model = EffectModel(trials_weights, scores)
    errors = model.scale * model._left_out()[0]
    for i in range(len(scores)):
        rest = [j for j in range(len(scores)) if j != i]
        # Scores less the centre of all, and variances of all, in the scale of the rest.
        other = EffectModel([trials_weights[j] for j in rest], scores[rest], model.logs, estimate=False)
        scaled = 2 * np.log(model.scale / other.scale)
        logs = {name: log + scaled for name, log in model.logs.items()}
        other = EffectModel([trials_weights[j] for j in rest], scores[rest], logs, estimate=False)
        mean, _ = other.predict([trials_weights[i]])
        assert scores[i] - other.centre - mean[0] == pytest.approx(errors[i], abs=0.15)


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
