"""Studies are grids: every choice once, the plain model among them, at the published places."""

from itertools import product
from typing import Any

import optuna
import pytest

from search.detection_spaces import PYRAMID
from search.samplers import check_sampler
from search.spaces import SPACES
from search.study_spaces import STUDIES, WITHOUT

CELLS = {"coco-normalisation": 3, "coco-heads": 4, "coco-modules": 7, "coco-backbones": 6}


def drawn(name: str, **params: Any) -> Any:
    return SPACES[name].draw(optuna.trial.FixedTrial(params)).model  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STUDIES)
def test_a_grid_tries_each_choice_once(name: str) -> None:
    space = SPACES[name]
    check_sampler("grid", space)
    study = optuna.create_study(sampler=optuna.samplers.BruteForceSampler(seed=0))
    found = []
    study.optimize(lambda trial: float(bool(found.append(space.draw(trial)))), n_trials=20)
    assert len(found) == CELLS[name]
    models = {repr(config.model) for config in found}
    assert len(models) == len(found)
    assert any(not config.model.placement for config in found)


@pytest.mark.parametrize(("kind", "count"), list(product(["decomposed", "sagan"], [1, 5, 7])))
def test_modules_are_at_the_published_places(kind: str, count: int) -> None:
    placement = drawn("coco-modules", attention=kind, count=count).placement
    assert {spec.type for spec in placement.values()} == {kind}
    assert len(placement) == count
    pyramid = [place for place in placement if place in PYRAMID]
    assert len(pyramid) == {1: 0, 5: 3, 7: 4}[count]
    assert "stage2.block4" in placement, "the end of res3 of ResNet-50"


def test_heads_and_normalisation_are_those_of_the_cell() -> None:
    (spec,) = drawn("coco-heads", heads=32).placement.values()
    assert spec.options["heads"] == 32
    (spec,) = drawn("coco-normalisation", normalisation="scaling").placement.values()
    assert spec.options["normalisation"] == "scaling"
    assert not drawn("coco-normalisation", normalisation=WITHOUT).placement
