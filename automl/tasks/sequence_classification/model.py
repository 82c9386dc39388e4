"""The models of sequences."""

from collections.abc import Mapping
from typing import Any

import torch

import backbones
from automl.task.subject import Subject
from automl.tasks.sequence_classification import recurrent, resnet1d
from automl.tasks.sequence_classification.larnn import backbone as larnn
from backbones.backbone_table import Backbone, table
from backbones.example import sum_outputs

BACKBONES = table(
    Backbone(name="resnet1d", build=resnet1d.build, dimensions=1, source="arXiv 1611.06455"),
    Backbone(name="lstm", build=recurrent.build_stacked, dimensions=1, source="Hochreiter, Schmidhuber 1997"),
    Backbone(name="bilstm", build=recurrent.build_residual, dimensions=1, source="arXiv 1708.08989"),
    Backbone(name="larnn", build=larnn.build, dimensions=1, source="arXiv 1808.05578"),
)
CHANNELS = 9  # Channels of sequences without data, as in UCI HAR.


def subject(backbone: str, size: int | None, options: Mapping[str, Any]) -> Subject:
    """Return a classifier of sequences of 128 steps, or of `size`."""
    size = size or 128
    return Subject(
        name=backbone,
        build=lambda: backbones.build(backbone, classes=6, in_channels=CHANNELS, **options),
        example=lambda count: torch.zeros(count, CHANNELS, size),
        description=f"a sequence of {size} steps with {CHANNELS} channels, with a head of 6 labels",
        loss=sum_outputs,
    )
