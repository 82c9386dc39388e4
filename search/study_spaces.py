"""Studies: grids that repeat tables of a paper on one's own data, with `--sampler grid`.

Source: Z. Shen et al., Efficient Attention (2018), arXiv 1812.01243: the normalisation, heads, the number and
kind of modules, and the backbone of a detector on COCO. Hyperparameters are those of the space `coco-da`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna

from attention.spec import Option, Spec
from search.config import DetectionData, DetectionModel, DetectionTraining, TrialConfig
from search.detection_spaces import COCO, COCO_TRAINING, FULL, TASK, published_places

WITHOUT = "without attention"
FIVE, SEVEN = 2, 3  # of `published_places`
DECOMPOSED: Mapping[str, Option] = {"normalisation": "softmax", "heads": 1}
BACKBONES = ("torchvision:resnet50", "torchvision:resnet101", "torchvision:resnext101_32x8d")


@dataclass(frozen=True, kw_only=True)
class Study:
    """A grid.

    draw: the changed model of a trial. plain: parameters of a model without attention.
    summary: one line for `automl spaces`.
    """

    draw: Callable[[optuna.Trial, DetectionModel], DetectionModel]
    plain: Mapping[str, Any]
    summary: str


def _with(model: DetectionModel, count: int, kind: str, options: Mapping[str, Option]) -> DetectionModel:
    """The model with so many modules of one kind at the published places."""
    if count == 0:
        return model
    chosen: Sequence[str] = {1: published_places(model)[0], 5: published_places(model)[FIVE]}.get(
        count, published_places(model)[SEVEN]
    )
    return replace(model, placement={place: Spec(kind, dict(options)) for place in chosen})


def _normalisation(trial: optuna.Trial, model: DetectionModel) -> DetectionModel:
    kind = trial.suggest_categorical("normalisation", [WITHOUT, "softmax", "scaling"])
    return _with(model, 0 if kind == WITHOUT else 1, "decomposed", {**DECOMPOSED, "normalisation": kind})


def _heads(trial: optuna.Trial, model: DetectionModel) -> DetectionModel:
    heads = trial.suggest_categorical("heads", [0, 1, 8, 32])
    return _with(model, 1 if heads else 0, "decomposed", {**DECOMPOSED, "heads": heads})


def _modules(trial: optuna.Trial, model: DetectionModel) -> DetectionModel:
    """sagan is the conventional one, with a matrix of all pairs of positions."""
    kind = trial.suggest_categorical("attention", [WITHOUT, "decomposed", "sagan"])
    if kind == WITHOUT:
        return model
    count = trial.suggest_categorical("count", [1, 5, 7])
    return _with(model, count, kind, DECOMPOSED if kind == "decomposed" else {})


def _backbones(trial: optuna.Trial, model: DetectionModel) -> DetectionModel:
    model = replace(model, backbone=trial.suggest_categorical("backbone", BACKBONES))
    return _with(model, trial.suggest_categorical("count", [0, 5]), "decomposed", DECOMPOSED)


STUDIES: Mapping[str, Study] = {
    "coco-normalisation": Study(
        draw=_normalisation,
        plain={"normalisation": WITHOUT},
        summary="a grid: decomposed attention with softmax or scaling; --sampler grid",
    ),
    "coco-heads": Study(draw=_heads, plain={"heads": 0}, summary="a grid: 1, 8 and 32 heads; --sampler grid"),
    "coco-modules": Study(
        draw=_modules,
        plain={"attention": WITHOUT},
        summary="a grid: 1, 5 and 7 modules, decomposed or conventional; --sampler grid",
    ),
    "coco-backbones": Study(
        draw=_backbones,
        plain={"backbone": BACKBONES[0], "count": 0},
        summary="a grid: ResNet-50, ResNet-101 and ResNeXt-101 with 0 and 5 modules; --sampler grid",
    ),
}


def drawn(
    study: Study,
    data: DetectionData = COCO,
    model: DetectionModel = FULL,
    training: DetectionTraining = COCO_TRAINING,
) -> Callable[[optuna.Trial], TrialConfig]:
    """The function of a space: the study with these data, this model and this training."""

    def draw(trial: optuna.Trial) -> TrialConfig:
        return TrialConfig(task=TASK, data=data, model=study.draw(trial, model), training=training)

    return draw
