"""The published comparison of PSMNet with and without decomposed attention (arXiv 1812.01243)."""

from dataclasses import replace
from functools import partial

import optuna

from automl.tasks.published_study import read_studies
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
STUDIES = read_studies(__file__)
