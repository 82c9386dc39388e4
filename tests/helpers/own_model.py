"""A user-defined model and a user-defined attention, each in two files."""

from pathlib import Path

NET = """
from torch import nn
from layers import Block


class Net(nn.Module):
    def __init__(self, classes: int, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))
"""

LAYERS = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, x):
        return x + self.body(x)
"""

GATE = """
from typing import Literal

from pooling import pool
from torch import nn


class Gate(nn.Module):
    def __init__(self, channels, kind: Literal["mean", "max"] = "mean", width: int = 4):
        super().__init__()
        self.kind = kind
        self.layers = nn.Sequential(nn.Linear(channels, width), nn.ReLU(), nn.Linear(width, channels))

    def forward(self, x):
        gate = self.layers(pool(x, self.kind)).sigmoid()
        return x * gate.view(*gate.shape, *[1] * (x.ndim - 2))
"""

POOLING = """
def pool(x, kind):
    return x.flatten(2).mean(2) if kind == "mean" else x.flatten(2).amax(2)
"""


def make_model(folder: Path) -> None:
    """`models/mine.py`, whose `Net` uses a file beside it."""
    (folder / "models").mkdir()
    (folder / "models" / "mine.py").write_text(NET)
    (folder / "models" / "layers.py").write_text(LAYERS)


def make_attention(folder: Path) -> None:
    """`mine.py`, whose `Gate` uses a file beside it."""
    (folder / "mine.py").write_text(GATE)
    (folder / "pooling.py").write_text(POOLING)
