"""The models of sequences, with a residual network that has the same sites for attention as those of images.

Source: Z. Wang, W. Yan, T. Oates, Time Series Classification from Scratch with Deep Neural Networks: A Strong
Baseline (2017), arXiv 1611.06455: three stages of blocks of three convolutions, then the mean over time.

Departures: kernels of 7, 5 and 3 instead of 8, 5 and 3, so that they are centred; a stem; each stage after
the first halves the resolution, so that attention over its positions is affordable; two blocks per stage; the
last norm of a branch starts at zero, as in `backbones.libraries.xresnet`.

Padding holds zeros at the input of every convolution, as beyond the end of a sequence without padding.
Neither the norms' statistics nor the final mean count it. A position at half the resolution is real if the
position at its centre is.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import backbones
from attention.padding import padding
from automl.base.errors import InputError
from automl.task.subject import Subject
from automl.tasks.sequence_classification import recurrent
from automl.tasks.sequence_classification.larnn import backbone as larnn
from backbones import padded
from backbones.backbone_table import Backbone, table
from backbones.example import sum_outputs
from backbones.padded import MaskedBatchNorm1d

KERNELS = (7, 5, 3)
STAGES = ((1, 1), (2, 2), (2, 2))  # Channels, as multiples of the stem's, and stride of each stage.


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """Return a convolution that keeps the length, apart from its stride, and a norm."""
    return [
        nn.Conv1d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
        MaskedBatchNorm1d(outputs),
    ]


class Block(nn.Module):
    """Residual block of three convolutions.

    Args:
        inputs: Number of input channels C.
        outputs: Number of output channels D.
        stride: Stride of the first convolution.

    Shape:
        `(B, C, N)` to `(B, D, N / stride)`.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, kernel in enumerate(KERNELS):
            layers += [nn.ReLU()] if i else []
            layers += conv_norm(outputs if i else inputs, outputs, kernel, 1 if i else stride)
        # The block starts as its shortcut.
        nn.init.zeros_(layers[-1].weight)  # type: ignore[arg-type]
        self.stride = stride
        self.branch = nn.Sequential(*layers)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch of `x` to its shortcut."""
        return torch.relu(self.branch(x) + self.shortcut(x))


class ResNet1d(nn.Module):
    """Residual network for sequences.

    Args:
        classes: Number of labels.
        in_channels: Number of channels C of the input.
        width: Channels of the stem and the first stage.
        blocks: Number of blocks of each stage.

    Shape:
        `(B, C, T)` and a mask, bool `(B, T)`, to logits `(B, classes)`.
    """

    def __init__(self, *, classes: int, in_channels: int, width: int, blocks: int) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.stem = nn.Sequential(*conv_norm(in_channels, width, KERNELS[0]), nn.ReLU())
        self.stages = nn.ModuleList()
        inputs = width
        for multiple, stride in STAGES:
            outputs = width * multiple
            firsts = [(inputs, stride), *[(outputs, 1)] * (blocks - 1)]
            self.stages.append(nn.ModuleList(Block(c, outputs, s) for c, s in firsts))
            inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the logits `(B, classes)` of `x`, `(B, C, T)`, with a mask `(B, T)`, or raise InputError."""
        padded.check(x, mask, self.in_channels)
        x = padded.without_padding(x, mask)
        with padding(mask):
            x = self.stem(x)
        for stage in self.stages.children():
            for block in stage.children():
                assert isinstance(block, Block)
                x = padded.without_padding(x, mask)  # attention may have written to padding
                if mask is not None:
                    mask = mask[:, :: block.stride]
                with padding(mask):
                    x = block(x)
        logits: Tensor = self.head(padded.mean(x, mask))
        return logits


def build_resnet1d(*, classes: int, in_channels: int, width: float = 1.0, blocks: int = 2) -> nn.Module:
    """Build a ResNet1d.

    Args:
        classes: Number of labels.
        in_channels: Number of channels of the input.
        width: Factor of the 64, 128 and 128 channels of the stages.
        blocks: Number of blocks of each stage.

    Raises:
        InputError: A value is out of range.
    """
    if not 1 / 16 <= width <= 16:
        raise InputError(f"a backbone's width must lie between 1/16 and 16; got {width}")
    if not 1 <= blocks <= 64:
        raise InputError(f"a stage of resnet1d has 1 to 64 blocks; got blocks={blocks}")
    return ResNet1d(classes=classes, in_channels=in_channels, width=round(64 * width), blocks=blocks)


BACKBONES = table(
    Backbone(name="resnet1d", build=build_resnet1d, dimensions=1, source="arXiv 1611.06455"),
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
