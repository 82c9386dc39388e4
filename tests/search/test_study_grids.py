"""Grids of studies: every row of the published tables is a cell, at the published sites."""

from itertools import product
from typing import Any

import optuna
import pytest

from automl.tasks.detection.space import PYRAMID
from automl.tasks.image_classification.study import BLOCKS, RATES, equal_time_grid
from search.drawn import Drawn, check_fixed_parameters
from search.grid import SMALL, grid_cells
from search.samplers import check_sampler
from search.space import load_space, study_grids
from tests.helpers import others_slow

CELLS = {
    "ssa-lr-sweep": 7,
    "ssa-equal-time-0.008": 2,
    "da-normalisation": 3,
    "da-heads": 3,
    "da-modules": 3,
    "da-conventional": 6,
    "da-backbones": 6,
    "da-imagenet": 3,
    "da-stereo": 2,
    "vit-blocks": 4,
    "codesearch-encoders": 2,
}


def drawn(name: str, **params: Any) -> Any:
    return load_space(name).draw(optuna.trial.FixedTrial(params))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    others_slow(
        [f"{name}{form}" for name in CELLS for form in ("", SMALL)],
        *(f"{name}{form}" for name in CELLS for form in ("", SMALL) if name != "da-backbones"),
    ),
)
def test_every_row_is_a_cell(name: str) -> None:
    space = load_space(name)
    check_sampler("grid", Drawn(space))
    check_fixed_parameters(space)
    cells = grid_cells(space)
    assert len(cells) == CELLS[name.removesuffix(SMALL)]
    configs = {repr(cell.config) for cell in cells}
    assert len(configs) == len(cells), "no two cells are the same"
    baselines = [cell for cell in cells if space.as_baseline(cell.config) == cell.config]
    assert len(baselines) == (7 if "sweep" in name else 1)


def test_grids_can_be_named_and_have_the_published_comparison_of_ssa() -> None:
    assert all(load_space(name) is space for name, space in study_grids().items())
    assert {equal_time_grid(rate, "") for rate in RATES} <= set(study_grids())
    assert drawn(equal_time_grid(0.012, SMALL), model="xresnet18 + ssa").training.learning_rate == 0.012
    config = drawn("ssa-equal-time-0.008", model="xresnet18 + ssa")
    assert (config.data.source, config.data.size, config.model.backbone) == ("woof1", 128, "xresnet18")
    assert (config.training.epochs, config.training.batch_size, config.training.mixup) == (50, 64, 0)
    assert [*config.model.placement] == ["stage1.block2.branch"]


@pytest.mark.parametrize(
    ("kind", "count", "form"), list(product(["decomposed", "conventional"], [1, 5, 7], ["", SMALL]))
)
def test_modules_are_at_the_published_sites(kind: str, count: int, form: str) -> None:
    placement = drawn(f"da-conventional{form}", attention=kind, modules=count).model.placement
    assert {spec.type for spec in placement.values()} == {"decomposed" if kind == "decomposed" else "sagan"}
    if kind == "conventional":
        assert {spec.options["form"] for spec in placement.values()} == {"explicit"}
    assert len(placement) == count
    if not form:
        assert sum(site in PYRAMID for site in placement) == {1: 0, 5: 3, 7: 4}[count]
        assert "stage2.block4" in placement, "the end of res3 of ResNet-50"


@pytest.mark.parametrize("block", list(BLOCKS))
def test_blocks_have_the_layer_scale_of_the_published_classes(block: str) -> None:
    """It is 1e-4 by default there, and left out with init_values=0."""
    options = drawn("vit-blocks", block=block).model.options
    scaled = "init_values=0" not in block
    assert options["block"].endswith("layer-scale") == scaled
    assert options.get("initial_scale") == (1e-4 if scaled else None)
    assert options["block"].startswith("parallel") == block.startswith("Parallel")
