"""Spaces of images: where attention goes in an xresnet."""

from collections.abc import Callable
from functools import cache
from typing import Any

import optuna
import torch

from backbones import Site, build, sites
from search import choices
from search.config import ImageData, Model, TrialConfig

PLAIN = {"modules": 0, **choices.PUBLISHED}


@cache
def sites_of(backbone: str, width: float) -> list[Site]:
    """Sites by name and channels. The last stages of a 128-pixel image still have several positions."""
    return sites(build(backbone, classes=2, width=width), torch.empty(1, 3, 128, 128))


def digits_sites() -> list[Site]:
    # At 32 pixels the last stage is a single position, where there is nothing to attend to.
    return [site for site in sites_of("xresnet18", 0.25) if not site.name.startswith("stage4")]


def digits(trial: optuna.Trial) -> TrialConfig:
    placement = choices.placement(trial, digits_sites())
    return TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement),
        training=choices.training(trial, epochs=6),
    )


def digits_papers() -> list[dict[str, Any]]:
    return choices.papers(digits_sites())


def photographs(source: str) -> Callable[[optuna.Trial], TrialConfig]:
    def draw(trial: optuna.Trial) -> TrialConfig:
        backbone = trial.suggest_categorical("backbone", ["xresnet18", "xresnet34", "xresnet50"])
        placement = choices.placement(trial, sites_of(backbone, 1.0), prefix=f"{backbone}.")
        return TrialConfig(
            data=ImageData(source=source, size=128),
            model=Model(backbone=backbone, placement=placement),
            training=choices.training(trial, epochs=5),
        )

    return draw


def xresnet18_papers() -> list[dict[str, Any]]:
    return [{"backbone": "xresnet18", **p} for p in choices.papers(sites_of("xresnet18", 1.0), "xresnet18.")]
