"""Normalisation of a backbone's images."""

from collections.abc import Sequence
from typing import NamedTuple


class Normalisation(NamedTuple):
    """Mean and standard deviation of each channel of images with values between 0 and 1."""

    mean: Sequence[float]
    std: Sequence[float]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
