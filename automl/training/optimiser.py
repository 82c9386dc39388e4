"""Optimisers and learning-rate schedules, as functions of the training's configuration."""

from collections.abc import Callable, Collection
from math import cos, pi
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from backbones.take_over import ATTENTION
from search.config import Training

# Embeddings of torchvision's transformers, which do not decay. Models of timm name theirs.
_EMBEDDINGS = ("pos_embedding", "class_token", "relative_position_bias_table")


def build_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Build AdamW, Adam or SGD with Nesterov momentum.

    Weights of convolutions and linear layers decay. Norms, biases, gates, position embeddings and the
    parameters in a model's `no_weight_decay` do not, unless `training.decayed` is `all`. A group's `lr_scale`
    is its factor of the learning rate.
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
    excluded = _without_decay(model)
    everything = training.decayed == "all"
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    decays = [p for name, p in named if everything or (p.ndim > 1 and name not in excluded)]
    decaying = {id(p) for p in decays}
    others = [p for _, p in named if id(p) not in decaying]
    groups = ((decays, training.weight_decay), (others, 0.0))
    return [{"params": parameters, "weight_decay": decay, "lr_scale": 1.0} for parameters, decay in groups]


def _by_layer(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """Return timm's groups, in which each layer has a lower rate than the next layer.

    The head and inserted attention, which are new, have the full rate.
    """
    # Source: H. Bao et al., BEiT (2021), arXiv 2106.08254, appendix H.
    from timm.models import group_parameters
    from timm.optim import param_groups_layer_decay

    matcher: Any = getattr(model, "group_matcher", None)
    if matcher is not None:
        layers = group_parameters(model, matcher(coarse=False), reverse=True)
    else:
        names = [name for name, _ in model.named_parameters()]
        blocks = list(dict.fromkeys(map(_block, names)))
        layers = {name: blocks.index(_block(name)) for name in names}
    last = max(layers.values())
    layers |= {name: last for name in layers if ATTENTION[0] in name.split(".")}
    values: list[dict[str, Any]] = param_groups_layer_decay(
        SimpleNamespace(  # timm uses nothing else of a model
            named_parameters=model.named_parameters, group_matcher=lambda coarse: layers.__getitem__
        ),
        weight_decay=training.weight_decay,
        no_weight_decay_list=_without_decay(model),
        layer_decay=training.layer_decay,
    )
    return values


def _block(name: str) -> str:
    """Return the path of a parameter up to its first part with a number, such as `features.3` or `layer2`."""
    parts = name.split(".")
    numbered = next((i for i, part in enumerate(parts) if part[-1:].isdigit()), 0)
    return ".".join(parts[: numbered + 1])


def _without_decay(model: nn.Module) -> Collection[str]:
    named: Callable[[], Collection[str]] = getattr(model, "no_weight_decay", tuple)
    return set(named()) | {
        name for name, _ in model.named_parameters() if name.rpartition(".")[2] in _EMBEDDINGS
    }


def compute_relative_rate(training: Training, progress: float) -> float:
    """Return the learning rate divided by its peak.

    Schedules:

    - `one-cycle`: a cosine from a tenth up to the peak at 30 %, then down to 1e-5, as SimpleSelfAttention
      trains. Source: L. Smith, Super-Convergence (2017), arXiv 1708.07120.
    - `flat-cosine`: the peak until 72 %, then a cosine down to zero, as in fastai's Imagenette examples.
    - `warmup-cosine`: a line from a hundredth up to the peak at 5 %, then a cosine down to a hundredth, as
      transformers are trained. Source: H. Touvron et al., DeiT (2021), arXiv 2012.12877.
    - `cosine`: from the peak down to zero, as `torch.optim.lr_scheduler.CosineAnnealingLR` with `T_max` of
      all epochs, but at each step instead of once an epoch.
    - `step`: multiplied by `decay_factor` after each `decay_every` of the configuration's epochs.

    Args:
        training: Configuration of the training.
        progress: Fraction of the training's time, from 0 at the first step to 1 at the end.
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
