"""The space of segmentation: attention in a U-Net.

Source: O. Oktay et al., Attention U-Net (2018), arXiv 1804.03999, has a gate on every skip connection, and J.
Chen et al., TransUNet (2021), arXiv 2102.04306, a transformer in the bottleneck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import optuna

from automl.tasks.segmentation import SegmentationData, SegmentationModel, SegmentationTraining
from search import choices
from search.config import TrialConfig
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

# The bundled images, and a model whose epoch takes seconds on a CPU.
DATA = SegmentationData()
SMALL = SegmentationModel(options={"width": 0.25})
TRAINING = SegmentationTraining(epochs=12, flip=False)  # mirrored digits are not digits
PLAIN = choices.plain(learning_rate=4e-3, weight_decay=1e-2, batch_size=8, schedule="one-cycle")
KIND: Mapping[str, Any] = {"normalisation": "softmax", "decomposed_heads": 1, "reduction": 2}
PARTS = ("skip", "bottleneck", "decoder")


def list_sites(model: SegmentationModel, size: int) -> list["Site"]:
    """Return the sites of residual blocks, skip connections, bottleneck and decoder stages."""
    import torch  # takes seconds

    from automl.task.base import remember_sites

    sites = remember_sites(
        ["segmentation space", model.backbone, dict(model.options), size],
        lambda: model.build(classes=2, size=size),
        lambda: torch.empty(2, 3, size, size),
    )
    return [site for site in sites if ".block" in site.name or site.name.startswith(PARTS)]


def published(model: SegmentationModel, size: int) -> Sequence[Mapping[str, Any]]:
    """Return parameters of decomposed attention on all skip connections, in the bottleneck, and at both."""
    names = [site.name for site in list_sites(model, size)]
    chosen = [
        [i for i, name in enumerate(names) if name.startswith(prefix)]
        for prefix in (PARTS[0], PARTS[1], PARTS[:2])
    ]
    return [{**PLAIN, **choices.modules(indices, "decomposed", KIND)} for indices in chosen if indices]


def draw(
    trial: optuna.Trial,
    model: SegmentationModel = SMALL,
    size: int = DATA.size,
    kinds: Sequence[str] = choices.LINEAR,
) -> TrialConfig:
    """Draw up to five modules of linear types: the first skip connection has many positions."""
    placement = choices.placement(trial, list_sites(model, size), most=5, kinds=kinds)
    return TrialConfig(
        task="segmentation",
        data=replace(DATA, size=size),
        model=replace(model, placement=placement),
        training=choices.optimisation(trial, TRAINING, batch_sizes=[8, 16, 32]),
    )


def unet(model: SegmentationModel = SMALL, size: int = DATA.size) -> Space:
    """Return the space of another encoder, or of a model of segmentation_models_pytorch."""
    return Space(
        name="unet",
        draw=partial(draw, model=model, size=size),
        baseline=PLAIN,
        free=partial(published, model, size),
        summary="classes of pixels, a U-Net; bundled scenes of digits, or --data of images and masks",
        with_backbone=lambda name, side, options: unet(
            SegmentationModel(backbone=name, options=options), side or size
        ),
    )


SPACES = (unet(),)
