"""Cases of the contract tests: every record of the table whose input has one dimension.

A new record is tested with its defaults automatically. A line in `SMALL` makes its tests fast.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backbones import BACKBONES, build

SMALL: dict[str, dict[str, Any]] = {
    "resnet1d": {"width": 1 / 8, "blocks": 1},
    "lstm": {"hidden": 8},
    "bilstm": {"hidden": 8, "layers": 2},
    "larnn": {"hidden": 8, "heads": 2, "window": 4, "layers": 2, "dropout": 0.0},
}

NAMES = [name for name, record in BACKBONES.items() if record.dimensions == 1]

every_name = pytest.mark.parametrize("name", NAMES)

CLASSES, CHANNELS, LENGTH = 5, 3, 16


def new(name: str, **options: object) -> nn.Module:
    """Return a model with known weights and norms with statistics of data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build(name, classes=CLASSES, in_channels=CHANNELS, **{**SMALL.get(name, {}), **options})
        for module in model.modules():
            if isinstance(getattr(module, "running_mean", None), Tensor):
                nn.init.normal_(module.running_mean, 0, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
                nn.init.uniform_(module.weight, 0.5, 1.5)
    return model


def sequences(batch: int = 4, length: int = LENGTH, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, CHANNELS, length, generator=generator, dtype=torch.float64).to(dtype)


def lengths(*real: int, longest: int = LENGTH) -> Tensor:
    """Return the mask, bool (B, T), of sequences of these lengths."""
    return torch.arange(longest) < torch.tensor(real).unsqueeze(1)
