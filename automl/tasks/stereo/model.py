"""The models of two rectified images."""

from collections.abc import Mapping
from typing import Any

import torch

from automl.base.errors import InputError
from automl.tasks.stereo import psmnet
from automl.tasks.subject import Subject
from backbones.backbone_table import Backbone, table, with_defaults
from backbones.example import Example, sum_outputs

# Models with `build(max_disparity=, **options)`.
STEREO = table(Backbone(name="psmnet", build=psmnet.PSMNet, dimensions=2, source="arXiv 1803.08669"))
MAX_DISPARITY = 192  # Largest disparity of a model without data.


def check_stereo(name: str, options: Mapping[str, Any]) -> None:
    """Raise InputError if a stereo model or one of its options is unknown, or a value is invalid."""
    psmnet.check(**with_defaults("stereo model", STEREO, name, options))


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a stereo model of pairs of 256 x 512 pixels, or of another height."""
    size = size or 256
    check_stereo(backbone, options)
    # A window of the pyramid must fit into the images, and the largest disparity into their width.
    least = max(psmnet.STEP * {**STEREO[backbone].options, **options}["pool"], MAX_DISPARITY // 2)
    if size < least or size % psmnet.MULTIPLE:
        raise InputError(
            f"--size must be a multiple of {psmnet.MULTIPLE} from {least} for {backbone}; got {size}"
        )

    def example(count: int) -> Example:
        image = torch.zeros(count, 3, size, 2 * size)
        return image, image.clone()

    return Subject(
        name=backbone,
        build=lambda: STEREO[backbone].build(max_disparity=MAX_DISPARITY, **options),
        example=example,
        description=f"a pair of images of {size}x{2 * size} pixels with disparities below {MAX_DISPARITY}",
        batch=2,
        loss=sum_outputs,
    )
