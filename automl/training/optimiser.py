"""Optimisers and learning-rate schedules, as functions of the training's configuration."""

from math import cos, pi

import torch
from torch import nn

from search.config import Schedule, Training


def build_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """AdamW with fastai's momenta, or SGD with Nesterov momentum.

    Weights of convolutions and linear layers decay; norms, biases and gates do not.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if training.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=training.learning_rate, betas=(0.9, 0.99), eps=1e-6, fused=True)
    return torch.optim.SGD(groups, lr=training.learning_rate, momentum=0.9, nesterov=True, fused=True)


def learning_rate(schedule: Schedule, progress: float) -> float:
    """The share of the peak learning rate at `progress`, from 0 at the first step to 1 at the end.

    one-cycle: a cosine from a tenth up to the peak at 30 %, then down to nothing, as SimpleSelfAttention
        trains. Source: L. Smith, Super-Convergence (2017), arXiv 1708.07120.
    flat-cosine: the peak until 72 %, then a cosine down to nothing, as fastai's Imagenette examples.
    step-N: three quarters of the rate after each N % of the training, as LARNN's training of 100 epochs has
        it after each N epochs.
    """
    if schedule.startswith("step-"):
        return float(0.75 ** int(100 * progress / int(schedule.removeprefix("step-")) + 1e-9))
    if schedule == "flat-cosine":
        return _cosine(1.0, 0.0, max(0.0, progress - 0.72) / 0.28)
    if progress < 0.3:
        return _cosine(0.1, 1.0, progress / 0.3)
    return _cosine(1.0, 1e-5, (progress - 0.3) / 0.7)


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + cos(pi * min(1.0, progress))) / 2
