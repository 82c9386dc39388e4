"""Spaces of images: attention in a backbone, and decomposed attention in a ResNet-50 or a ResNeXt-101.

Source of the latter: Z. Shen et al., Efficient Attention: Attention with Linear Complexities (2018), arXiv
1812.01243, section 5. There, one to seven modules follow res3 and res4 (here the second and third stage),
with softmax or scaling as the normalisation and several widths of the keys. Here the heads vary, too. All
modules of a trial are of one kind.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import optuna

import backbones
from attention.options import OptionValue
from attention.spec import Spec
from automl.base import loading
from automl.base.errors import InputError
from automl.tasks.image_classification import SPEC, ImageData, ImageTraining
from search import choices
from search.config import Model, TrialConfig
from search.space import Space

if TYPE_CHECKING:
    from backbones.site import Site

PLAIN = {"modules": 0, **choices.PUBLISHED}
XRESNETS = ("xresnet18", "xresnet34", "xresnet50")

_CLASSES = 2


def list_sites(
    backbone: str, size: int, options: Mapping[str, Any] | None = None, *, mixers: bool = False
) -> list["Site"]:
    """Return the sites of a backbone that have more than one position, for images of `size` pixels.

    `mixers` also lists sites at which a module replaces another one, whose pretrained weights are then lost.

    Raises:
        InputError: The backbone cannot take such images, does not return logits, or has no such site.
    """
    options_json = json.dumps(dict(options or {}), sort_keys=True)
    sites = _list_sites(backbone, size, options_json, loading.hash_code(backbone))
    return [site for site in sites if mixers or not site.replaces]


@cache
def _list_sites(backbone: str, size: int, options: str, code: str) -> list["Site"]:
    import torch  # takes seconds

    backbones.find(backbone, SPEC.dimensions)  # raises InputError for an unknown one
    model = backbones.build(backbone, classes=_CLASSES, size=size, **json.loads(options))
    images = torch.zeros(2, 3, size, size)
    sites = [site for site in backbones.sites(model, images) if site.positions > 1]
    with torch.no_grad():
        logits = model.eval()(images)
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(images), _CLASSES):
        output = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InputError(
            f"backbone {backbone!r} must return logits of shape (images, classes), "
            f"{(len(images), _CLASSES)} here; got {output}"
        )
    if not sites:
        raise InputError(
            f"backbone {backbone!r} has no feature map with several positions for images of {size} pixels, "
            f"so there is nothing to attend to; set a larger --size"
        )
    return sites


def list_digits_sites() -> list["Site"]:
    return list_sites("xresnet18", 32, {"width": 0.25})


def digits(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    placement = choices.placement(trial, list_digits_sites(), kinds=kinds)
    return TrialConfig(
        data=ImageData(source="digits", size=32),
        model=Model(backbone="xresnet18", options={"width": 0.25}, placement=placement),
        training=choices.training(trial, epochs=6),
    )


LOOKUP_DATA, LOOKUP_MODEL = ImageData(source="lookup", size=32), Model(backbone="small-resnet")
LOOKUP = TrialConfig(
    data=LOOKUP_DATA,
    model=LOOKUP_MODEL,
    training=ImageTraining(
        epochs=2, batch_size=64, learning_rate=2e-2, weight_decay=1e-2, schedule="one-cycle"
    ),
)
LOOKUP_PLAIN = {"modules": 0}


def list_lookup_sites() -> list["Site"]:
    return list_sites(LOOKUP_MODEL.backbone, LOOKUP_DATA.size)


def lookup(trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
    """Draw attention, and nothing else, in a small ResNet that looks up a shape by its colour."""
    placement = choices.placement(trial, list_lookup_sites(), most=2, kinds=kinds)
    return replace(LOOKUP, model=replace(LOOKUP.model, placement=placement))


@dataclass(frozen=True)
class Photographs:
    """The space of photographs of the source `name`.

    With `augment`, the strength of augmentation is drawn. With `trained`, models start from trained weights.
    """

    name: str
    summary: str
    backbones: Sequence[str] = XRESNETS
    size: int = 128
    augment: bool = False
    trained: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of a single backbone

    def space(self) -> Space:
        return Space(
            name=self.name,
            draw=self.draw,
            baseline={**self.first(), "modules": 0, **self.hyperparameters},
            free=self.free,
            summary=self.summary,
            with_backbone=lambda backbone, side, options: replace(
                self, backbones=(backbone,), size=side or self.size, options=options
            ).space(),
            fine_tuned=None if self.trained else lambda: replace(self, trained=True).space(),
        )

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Return the parameters of the baseline's training."""
        return choices.FINE_TUNING if self.trained else choices.PUBLISHED

    def draw(self, trial: optuna.Trial, kinds: Sequence[str] = choices.TYPES) -> TrialConfig:
        several = len(self.backbones) > 1
        backbone = trial.suggest_categorical("backbone", self.backbones) if several else self.backbones[0]
        prefix = f"{backbone}." if several else ""
        sites = list_sites(backbone, self.size, self.options)
        placement = choices.placement(trial, sites, prefix=prefix, kinds=kinds)
        training = (choices.fine_tuning if self.trained else choices.training)(trial, epochs=5)
        return TrialConfig(
            data=ImageData(source=self.name, size=self.size),
            model=Model(backbone=backbone, options=self.options, placement=placement),
            training=replace(training, **choices.augment(trial)) if self.augment else training,
        )

    def first(self) -> dict[str, str]:
        """Return parameters of the first backbone."""
        backbone = {"backbone": self.backbones[0]} if len(self.backbones) > 1 else {}
        return {**backbone, **({"augment": "light"} if self.augment else {})}

    def free(self) -> list[dict[str, Any]]:
        """Return parameters of the free answers in the first backbone, where it has such sites."""
        first = self.backbones[0]
        prefix = f"{first}." if len(self.backbones) > 1 else ""
        sites = list_sites(first, self.size, self.options)
        answers = choices.free(sites, prefix, baseline=self.hyperparameters)
        return [{**self.first(), **answer} for answer in answers]


SIZE, MOST = 224, 7  # of decomposed attention in large backbones: the images, and the most modules

DECOMPOSED = {"normalisation": "softmax", "heads": 1, "reduction": 8, **choices.PUBLISHED}


def list_stage_sites(backbone: str) -> list["Site"]:
    """Return the sites after the blocks of res3 and res4."""
    return [
        site
        for site in list_sites(backbone, SIZE)
        if site.name.startswith(("stage2.", "stage3.")) and not site.name.endswith("branch")
    ]


def decomposed(trial: optuna.Trial, *, backbone: str) -> TrialConfig:
    """Draw decomposed attention in a large backbone."""
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


def decomposed_papers(backbone: str) -> Sequence[dict[str, Any]]:
    """Return parameters of a module at the end of res4, of res3, and of both."""
    sites = list_stage_sites(backbone)
    res3 = max(i for i, site in enumerate(sites) if site.name.startswith("stage2."))
    res4 = len(sites) - 1
    return [
        {"modules": 1, "site1": res4, **DECOMPOSED},
        {"modules": 1, "site1": res3, **DECOMPOSED},
        {"modules": 2, "site1": res3, "site2": res4, **DECOMPOSED},
    ]


SPACES = (
    Space(
        name="digits",
        draw=digits,
        baseline=PLAIN,
        free=lambda: choices.free(list_digits_sites()),
        summary="8x8 handwritten digits at 32 px, quarter-width xresnet18; seconds an epoch on a CPU",
    ),
    Space(
        name="lookup",
        draw=lookup,
        baseline=LOOKUP_PLAIN,
        free=lambda: choices.free(list_lookup_sites(), baseline=LOOKUP_PLAIN),
        summary="drawn shapes, looked up by colour, at 32 px, a small ResNet; attention early in it decides",
    ),
    Photographs("nette", "Imagenette at 128 px, xresnet18/34/50 or --backbone").space(),
    Photographs("woof", "Imagewoof at 128 px, xresnet18/34/50 or --backbone").space(),
    Photographs(
        "folder", "--data PHOTOS, one folder per class, at 128 px; as woof, and augmentation", augment=True
    ).space(),
    *(
        Space(
            name=name,
            draw=partial(decomposed, backbone=backbone),
            baseline=PLAIN,
            free=partial(decomposed_papers, backbone),
            summary=f"0 to 7 decomposed attentions after res3 and res4 of {backbone}; --data PHOTOS",
        )
        for name, backbone in (
            ("resnet50-da", "torchvision:resnet50"),
            ("resnext101-da", "torchvision:resnext101_32x8d"),
        )
    ),
)
