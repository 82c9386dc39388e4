"""Optimisers and learning-rate schedules, as functions of the training's configuration."""

from collections.abc import Callable, Collection
from math import cos, pi
from typing import Any

import torch
from torch import nn

from attention import InputError
from search.config import Training

# Parameters that torchvision's transformers have beside weights and biases; timm's models name theirs.
_EMBEDDINGS = ("pos_embedding", "class_token", "relative_position_bias_table")


def build_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Build AdamW, Adam or SGD with Nesterov momentum.

    Weights of convolutions and linear layers decay; norms, biases, gates, embeddings of positions and what a
    model's own `no_weight_decay` names do not, unless `training.decayed` is `all`. A group's `lr_scale` is
    its part of the learning rate.
    Raises InputError for a layer decay of a model whose layers are not known.
    """
    groups = _by_layer(model, training) if training.layer_decay < 1 else _by_kind(model, training)
    for group in groups:
        group["lr"] = training.learning_rate * group["lr_scale"]
    if training.optimizer != "sgd":
        kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.Adam
        betas = training.beta1, training.beta2
        return kind(groups, lr=training.learning_rate, betas=betas, eps=training.eps, fused=True)
    return torch.optim.SGD(groups, lr=training.learning_rate, momentum=0.9, nesterov=True, fused=True)


def _by_kind(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    kept = _without_decay(model)
    everything = training.decayed == "all"
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decays = [p for name, p in named if everything or (p.ndim > 1 and name not in kept)]
    decaying = {id(p) for p in decays}
    stays = [p for _, p in named if id(p) not in decaying]
    groups = ((decays, training.weight_decay), (stays, 0.0))
    return [{"params": parameters, "weight_decay": decay, "lr_scale": 1.0} for parameters, decay in groups]


def _by_layer(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """timm's groups, in which each layer's rate is a part of the next one's, with the attention in it.

    Source: H. Bao et al., BEiT (2021), arXiv 2106.08254, appendix H.
    """
    if not hasattr(model, "group_matcher"):
        raise InputError(
            f"training.layer_decay needs a model that names its layers, as vit and those of timm do; "
            f"{type(model).__name__} does not. Leave it at 1"
        )
    from timm.optim import param_groups_layer_decay

    found: list[dict[str, Any]] = param_groups_layer_decay(
        model,
        weight_decay=training.weight_decay,
        no_weight_decay_list=_without_decay(model),
        layer_decay=training.layer_decay,
    )
    return found


def _without_decay(model: nn.Module) -> Collection[str]:
    named: Callable[[], Collection[str]] = getattr(model, "no_weight_decay", tuple)
    return set(named()) | {
        name for name, _ in model.named_parameters() if name.rpartition(".")[2] in _EMBEDDINGS
    }


def learning_rate(training: Training, progress: float) -> float:
    """The share of the peak learning rate at `progress`, from 0 at the first step to 1 at the end.

    one-cycle: a cosine from a tenth up to the peak at 30 %, then down to nothing, as SimpleSelfAttention
        trains. Source: L. Smith, Super-Convergence (2017), arXiv 1708.07120.
    flat-cosine: the peak until 72 %, then a cosine down to nothing, as fastai's Imagenette examples.
    warmup-cosine: a line from a hundredth up to the peak at 5 %, then a cosine down to a hundredth, as
        transformers are trained. Source: H. Touvron et al., DeiT (2021), arXiv 2012.12877.
    cosine: from the peak down to nothing, as `torch.optim.lr_scheduler.CosineAnnealingLR` with `T_max` of all
        epochs, but at each step instead of once an epoch.
    step: `decay_factor` of the rate after each `decay_every` of the configuration's epochs.
    """
    schedule = training.schedule
    if schedule == "step":
        return float(training.decay_factor ** int(progress * training.epochs / training.decay_every + 1e-9))
    if schedule == "cosine":
        return _cosine(1.0, 0.0, progress)
    if schedule == "flat-cosine":
        return _cosine(1.0, 0.0, max(0.0, progress - 0.72) / 0.28)
    if schedule == "warmup-cosine":
        return (
            0.01 + 0.99 * progress / 0.05 if progress < 0.05 else _cosine(1.0, 0.01, (progress - 0.05) / 0.95)
        )
    if progress < 0.3:
        return _cosine(0.1, 1.0, progress / 0.3)
    return _cosine(1.0, 1e-5, (progress - 0.3) / 0.7)


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + cos(pi * min(1.0, progress))) / 2
