"""fastai's xresnets: ResNets with a three-layer stem and batch norms that start each branch at zero.

Source: T. He et al., Bag of Tricks for Image Classification with CNNs (2018), arXiv 1812.01187, as in
fastai. Zero-initialised last norms are what lets an SSA module converge.

The widths of the stem's three convolutions differ between versions of fastai. Version 2 has 32, 32 and 64
channels. The code of SimpleSelfAttention has 32, 64 and 64, which adds 27,712 parameters.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from torch import nn

from attention import InputError

Stem = Literal["32-32-64", "32-64-64"]


def build(
    name: str, *, classes: int, in_channels: int = 3, width: float = 1.0, stem: Stem = "32-32-64"
) -> nn.Module:
    """Build the xresnet called `name`.

    Args:
        name: `xresnet18` or another depth.
        classes: Outputs of the head.
        in_channels: Channels of the images.
        width: Multiplies the channels of the stages, for quick runs.
        stem: Channels of the stem's convolutions: `32-32-64` as in fastai 2, `32-64-64` as in the code of
            SimpleSelfAttention.

    Raises:
        InputError: For a width that leaves no channels.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    channels = tuple(map(int, stem.split("-")))
    model: nn.Module = getattr(_fastais(), name)(
        n_out=classes, c_in=in_channels, widen=width, stem_szs=channels
    )
    return model


def _fastais() -> ModuleType:
    """fastai's module, without what its package imports beside it.

    That is scikit-learn above all, which takes each process of a trial a second and which no xresnet needs.
    Who imports the module or its package otherwise gets the same module, before or after this.
    """
    package = "fastai.vision.models"
    name = f"{package}.xresnet"
    if package not in sys.modules and name not in sys.modules:
        above: Any = import_module("fastai.vision")
        sys.modules[package] = empty = ModuleType(package)
        empty.__path__ = [f"{place}/models" for place in above.__path__]
        try:
            import_module(name)
        finally:
            del sys.modules[package]
        above.__getattr__ = _rest  # `import fastai.vision.models.xresnet` looks for the package there
    return import_module(name)


def _rest(name: str) -> ModuleType:
    """What is asked of `fastai.vision` that it does not have yet."""
    if name != "models":
        raise AttributeError(f"module 'fastai.vision' has no attribute {name!r}")
    return import_module("fastai.vision.models")
