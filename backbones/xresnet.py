"""fastai's xresnets: ResNets with a three-layer stem and batch norms that start each branch at zero.

Source: T. He et al., Bag of Tricks for Image Classification with CNNs (2018), arXiv 1812.01187, as in
fastai. Zero-initialised last norms are what lets an SSA module converge.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from torch import nn

from attention import InputError


def build(name: str, *, classes: int, in_channels: int = 3, width: float = 1.0) -> nn.Module:
    """The xresnet called `name`, with the stages' channels multiplied by `width`; for quick runs.

    Raises InputError for a width that leaves no channels.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    model: nn.Module = getattr(_fastais(), name)(n_out=classes, c_in=in_channels, widen=width)
    return model


def _fastais() -> ModuleType:
    """fastai's module, without what its package imports beside it.

    That is scikit-learn above all, which takes each process of a trial a second and which no xresnet needs.
    The module is the one of `from fastai.vision.models import xresnet`, whichever is imported first.
    """
    package = "fastai.vision.models"
    name = f"{package}.xresnet"
    if package not in sys.modules and name not in sys.modules:
        spec = find_spec("fastai.vision")
        assert spec is not None
        assert spec.submodule_search_locations is not None
        sys.modules[package] = empty = ModuleType(package)
        empty.__path__ = [f"{place}/models" for place in spec.submodule_search_locations]
        try:
            import_module(name)
        finally:
            del sys.modules[package]
    return import_module(name)
