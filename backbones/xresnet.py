"""fastai's xresnets: ResNets with a three-layer stem and batch norms that start each branch at zero.

Source: T. He et al., Bag of Tricks for Image Classification with CNNs (2018), arXiv 1812.01187, as in fastai.
An SSA module needs the zero-initialised last norms to converge.

The widths of the stem's three convolutions differ between versions of fastai. Version 2 has 32, 32 and 64
channels. The code of SimpleSelfAttention has 32, 64 and 64, which adds 27,712 parameters.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from torch import nn

from automl.base.errors import InputError

Stem = Literal["32-32-64", "32-64-64"]


def build(
    name: str, *, classes: int, in_channels: int = 3, width: float = 1.0, stem: Stem = "32-32-64"
) -> nn.Module:
    """Build the xresnet called `name`.

    Args:
        name: `xresnet18` or another depth.
        classes: Number of labels.
        in_channels: Number of channels of the images.
        width: Factor of the channels of the stages, for quick runs.
        stem: Channels of the stem's convolutions: `32-32-64` as in fastai 2, `32-64-64` as in the code of
            SimpleSelfAttention.

    Raises:
        InputError: The width is out of range.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    channels = tuple(map(int, stem.split("-")))
    model: nn.Module = getattr(_import_fastai(), name)(
        n_out=classes, c_in=in_channels, widen=width, stem_szs=channels
    )
    return model


def _import_fastai() -> ModuleType:
    """Import fastai's module without the other imports of its package.

    These include scikit-learn, and all of torchvision with torch's compiler, in which the module seeks a
    function that is no longer there. They take each process of a trial seconds, and no xresnet needs them.
    Other imports of the module or its package get the same module, before or after this.
    """
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
