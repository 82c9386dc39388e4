"""Models of torchvision and timm, by their names there, with new weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

from attention import InputError


@dataclass(frozen=True, kw_only=True)
class Library:
    """names: of its classification models. build: `build(name, classes=, in_channels=, size=, **options)`."""

    names: Callable[[], Sequence[str]]
    build: Callable[..., nn.Module]


@cache
def _torchvision_names() -> Sequence[str]:
    from torchvision import models

    found: list[str] = models.list_models(module=models)
    return found


def torchvision(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> nn.Module:
    """torchvision's model, without the auxiliary heads that some have in training.

    A ViT or MaxViT is made for images of `size` pixels, a ViT for a multiple of its patches.
    """
    from torchvision import models

    if in_channels != 3:
        raise InputError(f"torchvision's models take 3 channels; got in_channels={in_channels}")
    if name in ("googlenet", "inception_v3"):
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
) -> nn.Module:
    """timm's model. One that is made for a fixed size is made for `size`."""
    import timm as library

    known = library.get_pretrained_cfg(name, allow_unregistered=True)
    if size is not None and getattr(known, "fixed_input_size", False):
        options = {"img_size": size, **options}
    model: nn.Module = library.create_model(
        name, pretrained=False, num_classes=classes, in_chans=in_channels, **options
    )
    if isinstance(model, library.models.VisionTransformer) and size is not None:
        check_patches(f"timm:{name}", size, model.patch_embed.patch_size[0])
    return model


LIBRARIES: Mapping[str, Library] = {
    "torchvision": Library(names=_torchvision_names, build=torchvision),
    "timm": Library(names=_timm_names, build=timm),
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
