"""Running average of a model's weights. If a training has one, the average is scored and kept."""

import torch
from torch import nn


class Average:
    """timm's average of weights and buffers, whose decay grows with the steps up to `decay`.

    Source: timm.utils.ModelEmaV3.

    Args:
        model: The model that is trained.
        decay: Largest decay.

    Attributes:
        model: Model with the averaged weights, without gradients.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        from timm.utils import ModelEmaV3

        with torch.random.fork_rng(devices=[]):
            self._ema = ModelEmaV3(model, decay=decay, use_warmup=True)
        self.model: nn.Module = self._ema.module

    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights of `model` after step number `step`, counted from 1."""
        self._ema.update(model, step=step)
