"""Records what the inserted modules of a model attend to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention.attention_map import AttentionMap
from attention.gated import Gated, visible
from automl.base.errors import InputError


@contextmanager
def attention_maps(model: nn.Module) -> Iterator[dict[str, AttentionMap]]:
    """Record the weights of every inserted module during the forward passes inside the context.

    Outside the context, models have no hooks, so that training costs nothing. The output of the model does
    not change. The weights are computed a second time, in float32 and as in evaluation.

    Args:
        model: A model with inserted modules.

    Returns:
        A context that yields the map of each site in the latest pass. Modules without weights, such as
            `conv1x1`, have none.

    Raises:
        InputError: The model has no inserted module.

    Example:
        >>> import automl, torch
        >>> from torchvision.models import resnet18
        >>> model = automl.insert(resnet18(), {"stage4.block2": automl.Spec("multihead")}).eval()
        >>> with automl.attention_maps(model) as maps:
        ...     logits = model(torch.zeros(1, 3, 64, 64))
        >>> maps["stage4.block2"].heat().shape
        torch.Size([1, 2, 2])
    """
    modules = [module for module in model.modules() if isinstance(module, Gated) and module.site]
    if not modules:
        raise InputError(
            f"{type(model).__name__} has no inserted module whose attention could be shown; insert one with "
            f"automl.insert"
        )
    maps: dict[str, AttentionMap] = {}

    def record(module: nn.Module, args: Any, output: Any) -> None:
        assert isinstance(module, Gated)
        if (weights := map_of(module, args[0])) is not None:
            maps[module.site] = weights

    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def map_of(module: Gated, x: Tensor) -> AttentionMap | None:
    """Return the weights with which a module processes its input, as in evaluation.

    Args:
        module: The module.
        x: Its input, as for `forward`.

    Returns:
        The weights. None if the module has none.
    """
    tokens, mask, spatial = module.tokens(x[:, module.class_tokens :] if module.class_tokens else x)
    # A spectral norm in training mode would change its state.
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.autocast(x.device.type, enabled=False):
            precise = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
            return module.attention_map(precise, visible(mask), spatial)
    finally:
        for child, training in modes.items():
            child.training = training
