"""How the images that a backbone takes are normalised."""

from collections.abc import Sequence
from typing import NamedTuple


class Normalisation(NamedTuple):
    """Of images whose values lie between 0 and 1, channel by channel."""

    mean: Sequence[float]
    std: Sequence[float]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
