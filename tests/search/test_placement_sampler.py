"""The sampler of placements: reading trials, drawing, repeating, and leaving parameters to others."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import FixedTrial, TrialState

from automl.base.errors import InputError
from search import choices
from search.choices import parse_parameter
from search.placement_effects import IndexedModule, IndexedPlacement, parse_placement
from search.placement_sampler import PlacementSampler
from tests.helpers import others_slow

TYPES = ["a", "b", "c"]
Drawn = list[tuple[int, str]]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def draw(trial: optuna.Trial, *, sites: int = 6, most: int = 2, prefix: str = "") -> Drawn:
    indices = choices.ascending(trial, sites, most=most, prefix=prefix)
    return [(site, trial.suggest_categorical(f"type{i}", TYPES)) for i, site in enumerate(indices, start=1)]


def search(
    effect: Callable[[Drawn], float],
    trials: int,
    *,
    seed: int = 0,
    noise: float = 1.0,
    sampler: optuna.samplers.BaseSampler | None = None,
    **options: Any,
) -> optuna.Study:
    study = optuna.create_study(direction="maximize", sampler=sampler or PlacementSampler(seed))
    random = np.random.default_rng(seed)
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, effect(draw(trial, **options)) + noise * random.standard_normal())
    return study


def placed(study: optuna.Study) -> list[IndexedPlacement]:
    return [placement for trial in study.trials if (placement := parse_placement(trial.params)) is not None]


def test_every_parameter_that_a_placement_draws_is_known() -> None:
    """A new option of `choices.attention` must be added to OPTIONS."""
    study = optuna.create_study(sampler=RandomSampler(0))
    for _ in range(60):
        trial = study.ask()
        for i in choices.ascending(trial, 3, most=3, prefix="net."):
            choices.attention(trial, i + 1, 16)
        assert trial.user_attrs[choices.SITES] == ["net.", 3]
    names = {name for trial in study.trials for name in trial.params}
    assert {part.kind for name in names if (part := parse_parameter(name))} == {
        "modules", "site", "type", *choices.OPTIONS,
    }  # fmt: skip
    assert all(parse_parameter(name) for name in names)


def test_a_placement_is_read_from_parameters() -> None:
    first = {"modules": 2, "net.site1": 3, "type1": "ssa", "ks1": 1}
    assert parse_placement({**first, "net.site2": 5, "type2": "sagan", "lr": 0.1}) == IndexedPlacement(
        "net.", (IndexedModule(3, "ssa", (("ks", 1),)), IndexedModule(5, "sagan"))
    )
    assert parse_placement({"modules": 0, "lr": 0.1}) == IndexedPlacement("", ())
    assert parse_placement({"modules": 1, "site1": 4, "normalisation": "softmax"}) == IndexedPlacement(
        "", (IndexedModule(4, ""),)
    )
    assert parse_placement({"lr": 0.1}) is None
    assert parse_placement({"modules": 1}) is None


def test_trials_are_valid_and_depend_on_the_seed() -> None:
    drawn = [placed(search(len, 12, seed=seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for placement in drawn[0]:
        sites = [module.site for module in placement.modules]
        assert sites == sorted(set(sites))


def test_simultaneous_trials_differ() -> None:
    study = search(len, 5)
    asked = [draw(study.ask()) for _ in range(12)]
    assert len({tuple(params) for params in asked}) >= 6


def test_a_placement_that_may_be_best_is_repeated() -> None:
    study = search(lambda drawn: 3.0 * sum(kind == "a" for _, kind in drawn), 40, sites=3)
    most = Counter(placed(study)).most_common(1)[0]
    assert [module.type for module in most[0].modules] == ["a", "a"]
    assert most[1] > 2


def needle(placement: Drawn) -> float:
    """Effects that lead to sites 0 and 1, and one placement elsewhere that is much better."""
    if placement == [(2, "b"), (3, "b")]:
        return 50.0
    return sum(2.0 if site < 2 else -1.0 for site, _ in placement)


@pytest.mark.parametrize("seed", others_slow(range(3), 0))
def test_a_placement_whose_score_is_known_leaves_trials_to_others(seed: int) -> None:
    assert search(needle, 250, seed=seed, noise=0.01, sites=4).best_value > 40


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_both_directions(direction: str) -> None:
    study = optuna.create_study(direction=direction, sampler=PlacementSampler(0))
    sign, random = 1 if direction == "maximize" else -1, np.random.default_rng(0)
    for _ in range(25):
        trial = study.ask()
        study.tell(trial, sign * sum(kind == "b" for _, kind in draw(trial)) + 0.3 * random.standard_normal())
    assert all(module.type == "b" for placement in placed(study)[-8:] for module in placement.modules)


def test_fixed_parameters_are_kept_and_the_rest_fits() -> None:
    study = search(lambda drawn: float(sum(site for site, _ in drawn)), 20, most=3)
    for fixed in ({"modules": 2}, {"modules": 3, "site1": 2}, {"site1": 4, "modules": 2}, {"type1": "c"}):
        study.enqueue_trial(fixed)
        trial = study.ask()
        drawn = draw(trial, most=3)
        assert fixed.items() <= trial.params.items()
        assert len({site for site, _ in drawn}) == len(drawn)


def test_tpe_draws_other_parameters_jointly() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlacementSampler(0))
    for _ in range(60):
        trial = study.ask()
        drawn = draw(trial)
        rate = trial.suggest_float("rate", 0, 1)
        study.tell(trial, sum(kind == "a" for _, kind in drawn) - 8 * (rate - 0.3) ** 2)
    late = study.trials[-15:]
    assert np.mean([abs(trial.params["rate"] - 0.3) for trial in late]) < 0.12
    assert np.mean([m.type == "a" for p in placed(study)[-15:] for m in p.modules]) > 0.7


def test_a_space_without_choices_is_drawn_by_the_other_sampler() -> None:
    study = optuna.create_study(sampler=PlacementSampler(0))
    for _ in range(15):
        trial = study.ask()
        if trial.suggest_int("modules", 0, 1):
            trial.suggest_int("site1", 0, 3)
        study.tell(trial, 0.0)
    assert {trial.params["modules"] for trial in study.trials} == {0, 1}


def test_backbones_have_separate_sites_and_common_types() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlacementSampler(0))
    random = np.random.default_rng(0)
    for i in range(40):
        trial = study.ask()
        net, sites = ("x", 3) if i % 2 else ("y", 5)
        drawn = draw(trial, sites=sites, prefix=f"{net}.")
        assert all(site < sites for site, _ in drawn)
        effect = sum((kind == "c") + (site == sites - 1) for site, kind in drawn)
        study.tell(trial, effect + 0.3 * random.standard_normal())
    for prefix, last in (("x.", 2), ("y.", 4)):
        ((most, _),) = Counter(p for p in placed(study)[-20:] if p.prefix == prefix).most_common(1)
        assert {module.type for module in most.modules} == {"c"}
        assert most.modules[-1].site == last


def test_pruned_trials_are_ignored_and_exceeded_limits_not_repeated() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlacementSampler(0))
    for _ in range(30):
        trial = study.ask()
        drawn = draw(trial, sites=3, most=1)
        if drawn and drawn[0][1] == "a":  # the best one, were it not too large
            trial.report(100.0, 1)
            trial.set_constraint("memory", 1.0)
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, 1.0 * len(drawn))
    broken = Counter(
        p for t, p in zip(study.trials, placed(study), strict=True) if t.state is TrialState.PRUNED
    )
    assert max(broken.values(), default=0) <= 1


def test_several_objectives_are_rejected_and_a_fixed_trial_draws_as_before() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=PlacementSampler(0))
    with pytest.raises(InputError, match="takes one objective; use tpe or nsga2"):
        study.ask()
    assert draw(FixedTrial({"modules": 1, "site1": 3, "type1": "b"})) == [(3, "b")]
