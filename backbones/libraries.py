"""Models of torchvision, timm, segmentation_models_pytorch and fastai, and the normalisation of images."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from automl.base.errors import InputError
from automl.base.lazy import optional

if TYPE_CHECKING:  # They take seconds to import, and listing names does not need them.
    from torch import Tensor, nn


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel of images with values between 0 and 1."""

    mean: Sequence[float]
    std: Sequence[float]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class PublishedFile(NamedTuple):
    """File of published weights.

    Attributes:
        address: The address at which it is published.
        is_cached: True if this machine has it.
        path: The path at which the library looks for it. None if the library keeps it in a format of its own.
    """

    address: str
    is_cached: bool
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Library:
    """Library of models.

    Attributes:
        names: Lists its classification models.
        build: Builds a model: `build(name, classes=, in_channels=, size=, **options)`.
        normalisation: Returns the normalisation of a model's images: `normalisation(name)`.
        published: Loads the weights of a model: `published(name, classes=, size=, **options)`. None if an
            option of the model selects them.
        published_file: Returns their file: `published_file(name)`. None if there are none.
    """

    names: Callable[[], Sequence[str]]
    build: Callable[..., "nn.Module"]
    normalisation: Callable[[str], Normalisation]
    published: Callable[..., "Mapping[str, Tensor]"] | None = None
    published_file: Callable[[str], PublishedFile | None] = lambda _: None


_INCEPTIONS = ("googlenet", "inception_v3")


@cache
def _torchvision_names() -> Sequence[str]:
    from torchvision import models

    return list(models.list_models(module=models))


def torchvision(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """Build torchvision's model, without the auxiliary heads that some have in training.

    A ViT or MaxViT is built for images of `size` pixels. For a ViT this must be a multiple of its patches.
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
    module: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    return module


@cache
def _timm_names() -> Sequence[str]:
    import timm

    return list(timm.list_models())


def timm(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """Build timm's model. A model for images of a fixed size is built for `size`."""
    import timm as library

    config = library.get_pretrained_cfg(name, allow_unregistered=True)
    if size is not None and getattr(config, "fixed_input_size", False):
        options = {"img_size": size, **options}
    model: nn.Module = library.create_model(name, num_classes=classes, in_chans=in_channels, **options)
    if isinstance(model, library.models.VisionTransformer) and size is not None:
        check_patches(f"timm:{name}", size, model.patch_embed.patch_size[0])
    return model


def _torchvision_published(name: str, **_: Any) -> "Mapping[str, Tensor]":
    import torch
    from torchvision import models

    # The library itself converts its older files.
    with torch.random.fork_rng(devices=[]):
        model = models.get_model(name, weights=models.get_model_weights(name).DEFAULT, progress=False)
    return {key: value for key, value in model.state_dict().items() if not key.lower().startswith("aux")}


def _torchvision_file(name: str) -> PublishedFile:
    import torch
    from torchvision import models

    address = models.get_model_weights(name).DEFAULT.url
    path = Path(torch.hub.get_dir(), "checkpoints", address.rpartition("/")[2])
    return PublishedFile(address, path.exists(), path)


def _torchvision_normalisation(name: str) -> Normalisation:
    """Return the normalisation. The two oldest models were trained on values from -1 to 1."""
    return Normalisation((0.5,) * 3, (0.5,) * 3) if name in _INCEPTIONS else IMAGENET


def _timm_normalisation(name: str) -> Normalisation:
    import timm as library

    config = library.get_pretrained_cfg(name, allow_unregistered=True)
    return IMAGENET if config is None else Normalisation(tuple(config.mean), tuple(config.std))


def _timm_published(
    name: str, *, classes: int, size: int | None = None, **options: Any
) -> "Mapping[str, Tensor]":
    """Return weights, which timm fits to the size of the images. The head has the labels of its training."""
    import timm as library
    import torch

    config = library.get_pretrained_cfg(name, allow_unregistered=True)
    labels = classes if config is None else config.num_classes
    with torch.random.fork_rng(devices=[]):
        model = timm(name, classes=labels, size=size, pretrained=True, **options)
    return model.state_dict()


def _timm_file(name: str) -> PublishedFile | None:
    import huggingface_hub
    import timm as library

    config = library.get_pretrained_cfg(name, allow_unregistered=True)
    if config is None or not config.hf_hub_id:
        return None
    file = config.hf_hub_filename or "model.safetensors"
    kept = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, file)
    return PublishedFile(huggingface_hub.hf_hub_url(config.hf_hub_id, file), isinstance(kept, str))


# Models such as `smp:Unet` return a class for each pixel.
smp_library = optional("segmentation_models_pytorch", "segmentation")


def _smp_names() -> Sequence[str]:
    return [architecture.__name__ for architecture in smp_library.MODEL_ARCHITECTURES_MAPPING.values()]


def smp(
    name: str, *, classes: int, in_channels: int = 3, size: int | None = None, **options: Any
) -> "nn.Module":
    """Build a model of segmentation_models_pytorch, with new weights unless an option selects some."""
    options = {"encoder_weights": None, **options}
    module: nn.Module = smp_library.create_model(name, classes=classes, in_channels=in_channels, **options)
    return module


LIBRARIES: Mapping[str, Library] = {
    "torchvision": Library(
        names=_torchvision_names,
        build=torchvision,
        normalisation=_torchvision_normalisation,
        published=_torchvision_published,
        published_file=_torchvision_file,
    ),
    "timm": Library(
        names=_timm_names,
        build=timm,
        normalisation=_timm_normalisation,
        published=_timm_published,
        published_file=_timm_file,
    ),
    "smp": Library(names=_smp_names, build=smp, normalisation=lambda _: IMAGENET),
}


def check_patches(name: str, size: int, patch: int) -> None:
    """Raise `InputError` if the image size is not a multiple of the patch size. The rest would be cut off."""
    if size % patch:
        below, above = size // patch * patch, -(-size // patch) * patch
        near = f"{below} or {above}" if below else str(above)
        raise InputError(
            f"the image size for {name} must be a multiple of its patches of {patch} pixels; got {size}. "
            f"Take --size {near}"
        )


Stem = Literal["32-32-64", "32-64-64"]


def xresnet(
    name: str, *, classes: int, in_channels: int = 3, width: float = 1.0, stem: Stem = "32-32-64"
) -> "nn.Module":
    """Build fastai's xresnet: a ResNet with a three-layer stem, whose branches end in zero batch norms.

    An SSA module needs these zero norms to converge. Source: T. He et al., Bag of Tricks for Image
    Classification with CNNs (2018), arXiv 1812.01187, as in fastai.

    Args:
        name: `xresnet18` or another depth.
        classes: Number of labels.
        in_channels: Number of channels of the images.
        width: Factor of the channels of the stages, for quick runs.
        stem: Channels of the stem's convolutions: `32-32-64` as in fastai 2, `32-64-64` as in the code of
            SimpleSelfAttention, which adds 27,712 parameters.

    Raises:
        InputError: The width is out of range.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    channels = tuple(map(int, stem.split("-")))
    module: nn.Module = getattr(_import_fastai(), name)(
        n_out=classes, c_in=in_channels, widen=width, stem_szs=channels
    )
    return module


def _import_fastai() -> ModuleType:
    """Import fastai's module without the other imports of its package."""
    # These include scikit-learn, and all of torchvision with torch's compiler, in which the module seeks a
    # function that is no longer there. They take each process of a trial seconds, and no xresnet needs them.
    # Other imports of the module or its package get the same module, before or after this.
    package, gone = "fastai.vision.models", "torchvision.models.utils"
    name = f"{package}.xresnet"
    if package not in sys.modules and name not in sys.modules:
        above: Any = import_module("fastai.vision")
        sys.modules[package] = empty = ModuleType(package)
        empty.__path__ = [f"{folder}/models" for folder in above.__path__]
        missing: dict[str, Any] = {gone: None}  # its import raises at once
        sys.modules.update(missing)
        try:
            import_module(name)
        finally:
            del sys.modules[package], sys.modules[gone]
        above.__getattr__ = _rest  # `import fastai.vision.models.xresnet` accesses the package there
    return import_module(name)


def _rest(name: str) -> ModuleType:
    """Import a missing attribute of `fastai.vision`."""
    if name != "models":
        raise AttributeError(f"module 'fastai.vision' has no attribute {name!r}")
    return import_module("fastai.vision.models")
