"""The published comparison of PSMNet with and without decomposed attention (arXiv 1812.01243)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import optuna

from automl.tasks.published_study import SOURCE_OF_DECOMPOSED, UNPRINTED, Row, Study
from automl.tasks.stereo import StereoModel, StereoTraining, space
from search.config import TrialConfig
from search.grid import SMALL, decomposed, grid


def _draw(trial: optuna.Trial, *, small: bool) -> TrialConfig:
    """Draw PSMNet, plain or with one module after its pyramid."""
    chosen = trial.suggest_categorical("model", ["PSMNet", "DA-PSMNet"])
    model: StereoModel = space.SMALL if small else space.FULL
    placement = decomposed(["backbone.pyramid"] if chosen == "DA-PSMNet" else [])
    return TrialConfig(
        task=space.TASK,
        data=space.PLANES if small else space.SCENEFLOW,
        model=replace(model, placement=placement),
        training=StereoTraining(epochs=4, batch_size=4, learning_rate=4e-3, schedule="one-cycle")
        if small
        else StereoTraining(),
    )


GRIDS = tuple(
    grid(f"da-stereo{form}", partial(_draw, small=bool(form)), {"model": "PSMNet"}) for form in ("", SMALL)
)
STUDIES: Sequence[Study] = (
    Study(
        name="da-stereo",
        summary="PSMNet with and without a decomposed attention",
        source=SOURCE_OF_DECOMPOSED,
        columns={"epe": "EPE, px"},
        setup={
            "model": "psmnet",
            "data": "Scene Flow",
            "inputs": "35,454 stereo pairs",
            "size": f"{UNPRINTED}256 x 512 px",
            "epochs": f"{UNPRINTED}10",
            "scored": "a split that it does not name",
        },
        rows=[
            Row(name="PSMNet", figures={"epe": "1.09"}),
            Row(name="DA-PSMNet", figures={"epe": "0.48"}),
        ],
        data="Scene Flow: --data FOLDER",
        notes=[
            "Figures of other methods that the source quotes, EPE: iResNet-i2 1.40, EdgeStereo 1.12, "
            "CSPN 0.78. They are not run here."
        ],
    ),
)
