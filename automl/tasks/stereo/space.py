"""Spaces of stereo: attention in PSMNet's backbone, after its pyramid or in its volume.

`STUDIES` has the published comparison of PSMNet with and without decomposed attention (arXiv 1812.01243).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from automl.task.published_study import read_studies
from automl.tasks.stereo import StereoData, StereoModel, StereoTraining
from search import choices, grid
from search.config import TrialConfig
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

TASK = "stereo"

# The bundled pairs, and a model whose epoch takes half a minute on a CPU. It begins to match after some
# hundred steps, so batches are small.
PLANES = StereoData(source="planes", height=64, width=128, max_disparity=48)
SMALL = StereoModel(options={"width": 0.25, "blocks": 3, "pool": 16, "aggregation": "basic", "groups": 8})
PLANES_PLAIN = choices.plain(learning_rate=4e-3, weight_decay=1e-4, batch_size=4, schedule="one-cycle")

# As published on Scene Flow, except for the optimiser (adamw with little decay) and the end of the schedule.
SCENEFLOW = StereoData(source="pairs", height=256, width=512, max_disparity=192)
FULL = StereoModel()
SCENEFLOW_PLAIN = choices.plain(learning_rate=1e-3, weight_decay=1e-4, batch_size=12, schedule="flat-cosine")

# Sites at which decomposed attention is tried first, at each and at all: after the pyramid, on the volume
# before its aggregation, and at the end of the aggregation, which is the last site.
FIRST = ("backbone.pyramid", "aggregation.entry")
KIND: Mapping[str, Any] = {"normalisation": "softmax", "decomposed_heads": 1, "reduction": 1}


def list_sites(data: StereoData, model: StereoModel) -> list["Site"]:
    """Return the sites with several channels. After the aggregation there is one, the costs."""
    import torch  # takes seconds

    from automl.task.base import remember_sites
    from automl.tasks.stereo.model import STEREO

    size = data.height, data.width
    sites = remember_sites(
        ["stereo space", model.backbone, dict(model.options), *size, data.max_disparity],
        lambda: STEREO[model.backbone].build(max_disparity=data.max_disparity, **model.options),
        lambda: (torch.zeros(2, 3, *size), torch.zeros(2, 3, *size)),
    )
    return [site for site in sites if site.channels > 1]


def draw(
    trial: optuna.Trial,
    kinds: Sequence[str] = choices.TYPES,
    *,
    data: StereoData,
    model: StereoModel,
    epochs: int,
    batch_sizes: Sequence[int],
) -> TrialConfig:
    """Draw a PSMNet with up to three modules. The volume of the published one has 393,216 positions."""
    placement = choices.placement(trial, list_sites(data, model), kinds=kinds)
    return TrialConfig(
        task=TASK,
        data=data,
        model=replace(model, placement=placement),
        training=choices.optimisation(trial, StereoTraining(epochs=epochs), batch_sizes=batch_sizes),
    )


def published(data: StereoData, model: StereoModel, plain: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return parameters of decomposed attention (arXiv 1812.01243) at each of FIRST, and at all of them."""
    names = [site.name for site in list_sites(data, model)]
    first = [*(names.index(site) for site in FIRST), len(names) - 1]
    chosen = [*([index] for index in first), first]
    return [{**plain, **choices.modules(indices, "decomposed", KIND)} for indices in chosen]


SPACES = (
    Space(
        name="planes",
        draw=partial(draw, data=PLANES, model=SMALL, epochs=8, batch_sizes=[2, 4, 8]),
        baseline=PLANES_PLAIN,
        free=partial(published, PLANES, SMALL, PLANES_PLAIN),
        summary="disparities of bundled stereo pairs of 80x176 pixels; a narrow PSMNet",
    ),
    Space(
        name="sceneflow",
        draw=partial(
            draw, kinds=choices.LINEAR, data=SCENEFLOW, model=FULL, epochs=10, batch_sizes=[6, 12, 24]
        ),
        baseline=SCENEFLOW_PLAIN,
        free=partial(published, SCENEFLOW, FULL, SCENEFLOW_PLAIN),
        summary="PSMNet as published; --data of Scene Flow, KITTI, Middlebury or a CSV of pairs",
    ),
)


def _draw_published(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw PSMNet, plain or with one module after its pyramid."""
    chosen = trial.suggest_categorical("model", ["PSMNet", "DA-PSMNet"])
    placement = grid.decomposed(["backbone.pyramid"] if chosen == "DA-PSMNet" else [])
    return TrialConfig(
        task=TASK,
        data=PLANES if small else SCENEFLOW,
        model=replace(SMALL if small else FULL, placement=placement),
        training=StereoTraining(epochs=4, batch_size=4, learning_rate=4e-3, schedule="one-cycle")
        if small
        else StereoTraining(),
    )


GRIDS = tuple(
    grid.grid(f"da-stereo{form}", partial(_draw_published, small=bool(form)), {"model": "PSMNet"})
    for form in ("", grid.SMALL)
)
STUDIES = read_studies(__file__)
