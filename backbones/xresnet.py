"""fastai's xresnets: ResNets with a three-layer stem and batch norms that start each branch at zero.

Source: T. He et al., Bag of Tricks for Image Classification with CNNs (2018), arXiv 1812.01187, as in
fastai. Zero-initialised last norms are what lets an SSA module converge.
"""

from torch import nn

from attention import InputError


def build(name: str, *, classes: int, in_channels: int = 3, width: float = 1.0) -> nn.Module:
    """The xresnet called `name`, with the stages' channels multiplied by `width`; for quick runs.

    Raises InputError for a width that leaves no channels.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    from fastai.vision.models import xresnet  # takes seconds to import

    model: nn.Module = getattr(xresnet, name)(n_out=classes, c_in=in_channels, widen=width)
    return model
