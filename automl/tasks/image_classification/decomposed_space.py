"""Spaces of decomposed attention in a ResNet-50 or a ResNeXt-101: number of modules, sites and kind.

Source: Z. Shen et al., Efficient Attention: Attention with Linear Complexities (2018), arXiv 1812.01243,
section 5. There, one to seven modules follow res3 and res4 (here the second and third stage), with softmax or
scaling as the normalisation and several widths of the keys. Here the heads vary, too. All modules of a trial
are of one kind.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from attention.options import OptionValue
from attention.spec import Spec
from automl.tasks.image_classification import ImageData
from automl.tasks.image_classification.space import PLAIN, list_sites
from search import choices
from search.config import Model, TrialConfig
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

SIZE, MOST = 224, 7

PUBLISHED = {"normalisation": "softmax", "heads": 1, "reduction": 8, **choices.PUBLISHED}


def list_stage_sites(backbone: str) -> list["Site"]:
    """Return the sites after the blocks of res3 and res4."""
    return [
        site
        for site in list_sites(backbone, SIZE)
        if site.name.startswith(("stage2.", "stage3.")) and not site.name.endswith("branch")
    ]


def decomposed(backbone: str) -> Callable[[optuna.Trial], TrialConfig]:
    """Return the function that draws a configuration with `backbone`."""

    def draw(trial: optuna.Trial) -> TrialConfig:
        sites = list_stage_sites(backbone)
        chosen = [sites[i] for i in choices.ascending(trial, len(sites), most=MOST)]
        placement = {}
        if chosen:
            kind: dict[str, OptionValue] = {
                "normalisation": trial.suggest_categorical("normalisation", ["softmax", "scaling"]),
                "heads": trial.suggest_categorical("heads", [1, 8, 32]),
            }
            reduction = trial.suggest_categorical("reduction", [1, 2, 4, 8])
            for site in chosen:
                width = site.channels // reduction
                options = {**kind, "key_channels": width, "value_channels": width}
                placement[site.name] = Spec("decomposed", options)
        return TrialConfig(
            data=ImageData(source="folder", size=SIZE),
            model=Model(backbone=backbone, placement=placement),
            training=choices.training(trial, epochs=5),
        )

    return draw


def papers(backbone: str) -> Sequence[dict[str, Any]]:
    """Return parameters of a module at the end of res4, of res3, and of both."""
    sites = list_stage_sites(backbone)
    res3 = max(i for i, site in enumerate(sites) if site.name.startswith("stage2."))
    res4 = len(sites) - 1
    return [
        {"modules": 1, "site1": res4, **PUBLISHED},
        {"modules": 1, "site1": res3, **PUBLISHED},
        {"modules": 2, "site1": res3, "site2": res4, **PUBLISHED},
    ]


SPACES = tuple(
    Space(
        name=name,
        draw=decomposed(backbone),
        baseline=PLAIN,
        published=partial(papers, backbone),
        summary=f"0 to 7 decomposed attentions after res3 and res4 of {backbone}; --data PHOTOS",
    )
    for name, backbone in (
        ("resnet50-da", "torchvision:resnet50"),
        ("resnext101-da", "torchvision:resnext101_32x8d"),
    )
)
