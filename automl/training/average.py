"""A running average of a model's weights, which is what is scored and kept where a training asks for one."""

import torch
from torch import nn


class Average:
    """timm's average of weights and buffers, whose decay grows with the steps up to `decay`.

    model: of the averages, which needs no gradients. Source: timm.utils.ModelEmaV3.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        from timm.utils import ModelEmaV3

        with torch.random.fork_rng(devices=[]):
            self._ema = ModelEmaV3(model, decay=decay, use_warmup=True)
        self.model: nn.Module = self._ema.module

    def update(self, model: nn.Module, step: int) -> None:
        """After a training's step of this number, counted from 1."""
        self._ema.update(model, step=step)
