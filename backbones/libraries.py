"""Models of torchvision, timm and segmentation_models_pytorch, by their names there, with new weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from attention import InputError
from backbones.extras import optional
from backbones.normalisation import IMAGENET, Normalisation

if TYPE_CHECKING:  # it takes seconds to import, and names can be told without
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library of models.

    names: of its classification models. build: `build(name, classes=, in_channels=, size=, **options)`.
    normalisation: `normalisation(name)`, of the images that a model takes.
    published: `published(name, classes=, size=, **options)`, the weights of a model; None where an option of
        the model names them.
    """

    names: Callable[[], Sequence[str]]
    build: Callable[..., "nn.Module"]
    normalisation: Callable[[str], Normalisation]
    published: Callable[..., "Mapping[str, Tensor]"] | None = None


_INCEPTIONS = ("googlenet", "inception_v3")


@cache
def _torchvision_names() -> Sequence[str]:
    from torchvision import models

    found: list[str] = models.list_models(module=models)
    return found


def torchvision(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """torchvision's model, without the auxiliary heads that some have in training.

    A ViT or MaxViT is made for images of `size` pixels, a ViT for a multiple of its patches.
    """
    from torchvision import models

    if in_channels != 3:
        raise InputError(f"torchvision's models take 3 channels; got in_channels={in_channels}")
    if name in _INCEPTIONS:
        options = {"aux_logits": False, "init_weights": True, **options}
    if name.startswith("vit_") and size is not None:
        options = {"image_size": size, **options}
        check_patches(f"torchvision:{name}", size, int(name.rpartition("_")[2]))
    if name.startswith("maxvit_") and size is not None:
        options = {"input_size": (size, size), **options}
    model: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    return model


@cache
def _timm_names() -> Sequence[str]:
    import timm

    found: list[str] = timm.list_models()
    return found


def timm(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """timm's model. One that is made for a fixed size is made for `size`."""
    import timm as library

    known = library.get_pretrained_cfg(name, allow_unregistered=True)
    if size is not None and getattr(known, "fixed_input_size", False):
        options = {"img_size": size, **options}
    model: nn.Module = library.create_model(name, num_classes=classes, in_chans=in_channels, **options)
    if isinstance(model, library.models.VisionTransformer) and size is not None:
        check_patches(f"timm:{name}", size, model.patch_embed.patch_size[0])
    return model


def _torchvision_published(name: str, **_: Any) -> "Mapping[str, Tensor]":
    import torch
    from torchvision import models

    # The library itself knows how to read the older of its files.
    with torch.random.fork_rng(devices=[]):
        model = models.get_model(name, weights=models.get_model_weights(name).DEFAULT, progress=False)
    return {key: value for key, value in model.state_dict().items() if not key.lower().startswith("aux")}


def _torchvision_normalisation(name: str) -> Normalisation:
    """The two oldest were trained on numbers from -1 to 1."""
    return Normalisation((0.5,) * 3, (0.5,) * 3) if name in _INCEPTIONS else IMAGENET


def _timm_normalisation(name: str) -> Normalisation:
    import timm as library

    known = library.get_pretrained_cfg(name, allow_unregistered=True)
    return IMAGENET if known is None else Normalisation(tuple(known.mean), tuple(known.std))


def _timm_published(
    name: str, *, classes: int, size: int | None = None, **options: Any
) -> "Mapping[str, Tensor]":
    """timm itself fits them to the size of the images. The head is for the labels it was published for."""
    import timm as library
    import torch

    known = library.get_pretrained_cfg(name, allow_unregistered=True)
    labels = classes if known is None else known.num_classes
    with torch.random.fork_rng(devices=[]):
        model = timm(name, classes=labels, size=size, pretrained=True, **options)
    state: Mapping[str, Tensor] = model.state_dict()
    return state


# Its models, called `smp:Unet`, return a class for each pixel.
smp_library = optional("segmentation_models_pytorch", "segmentation")


def _smp_names() -> Sequence[str]:
    return [architecture.__name__ for architecture in smp_library.MODEL_ARCHITECTURES_MAPPING.values()]


def smp(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """The model of segmentation_models_pytorch; its encoder has new weights unless an option names some."""
    options = {"encoder_weights": None, **options}
    model: nn.Module = smp_library.create_model(name, classes=classes, in_channels=in_channels, **options)
    return model


LIBRARIES: Mapping[str, Library] = {
    "torchvision": Library(
        names=_torchvision_names,
        build=torchvision,
        normalisation=_torchvision_normalisation,
        published=_torchvision_published,
    ),
    "timm": Library(
        names=_timm_names, build=timm, normalisation=_timm_normalisation, published=_timm_published
    ),
    "smp": Library(names=_smp_names, build=smp, normalisation=lambda _: IMAGENET),
}


def check_patches(name: str, size: int, patch: int) -> None:
    """Raises InputError for images that patches do not fill: the rest would be cut off."""
    if size % patch:
        below, above = size // patch * patch, -(-size // patch) * patch
        near = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"the image size for {name} must be a multiple of its patches of {patch} pixels; got {size}. "
            f"Take --size {near}"
        )
