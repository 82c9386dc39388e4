"""Base class of all attention modules: `y = x + gamma * attend(x)` over the positions of a feature map.

`attention_maps` records the weights of those in a model.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from attention.attention_map import AttentionMap
from attention.padding import current_mask
from automl.base.errors import InputError

Result = TypeVar("Result")

# Order of the dimensions: `(B, C, *spatial)` for convolutions, `(B, *spatial, C)` for linear layers.
Layout = Literal["BC*", "B*C"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one module at one site.

    Attributes:
        parameters: Number of trainable values.
        macs: Multiply-accumulates of the matrix products in the forward pass of one example.
        memory: Values kept for the backward pass of one example besides the input, for channels_last
            features. For contiguous features, a projection also keeps a transposed copy.
    """

    parameters: int
    macs: int
    memory: int


class Gated(nn.Module, ABC):
    """Residual update of a feature map, behind one scalar gate that starts at zero.

    A new module is exactly the identity, so it can be inserted into a trained network. Inside
    `attention.padding.padding(mask)`, real positions attend only to real positions, and padded positions are
    returned unchanged.

    Args:
        channels: Number of channels C of the features.

    Attributes:
        site: Name of the module's site in a model. Empty outside of a model.
        layout: Order of the dimensions: `BC*` or `B*C`.
        class_tokens: Number of leading tokens of `(B, N, C)` that are not positions. They are neither
            attended to nor changed.
        replaces: True if the module replaces another one. It then returns only the update, which is zero at
            class tokens.
        sums_over_positions: True if the module sums products over all positions.
        loops: True if the module computes one chunk of positions after another.
        blends: True if the gate moves from the input to the update: `y = x + gamma * (attend(x) - x)`. At 1
            the module is then exactly `attend`.

    Shape:
        `(B, C, *spatial)` with one to three spatial dimensions, or `(B, *spatial, C)` if `layout` is `B*C`,
            to the same shape, dtype and memory format.
    """

    site = ""
    layout: Layout = "BC*"
    class_tokens = 0
    replaces = False
    blends = False

    loops = False

    # Sums of N squares of features overflow float16. Such a module computes in float32 instead of float16.
    # The range of bfloat16 suffices.
    sums_over_positions = False

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gamma = nn.Parameter(torch.zeros(1))

    @abstractmethod
    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        """Compute the update of every position from all positions.

        Args:
            x: Features `(B, N, C)`. They are zero at masked positions.
            mask: Bool `(B, N)`, True at the positions that may be attended to, at least one in every row.
                None if all may be.
            spatial: Extents of the feature map. N is their product, in row-major order.

        Returns:
            The update `(B, N, C)`. At masked positions any finite value will do.
        """

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap | None:
        """Compute the weights that `attend` uses, for `attention_maps`. None if the module has none.

        The arguments are those of `attend`, with features in float32 or float64.
        """
        return None

    def check_extents(self, spatial: Sequence[int]) -> None:
        """Raise `InputError` if the module does not take features with the extents `spatial`."""
        return

    def forward(self, x: Tensor) -> Tensor:
        """Add the gated update to `x`.

        Args:
            x: Features `(B, C, *spatial)`, or `(B, *spatial, C)` if `layout` is `B*C`.

        Returns:
            Features of the same shape and dtype. Only the update if `replaces` is set.

        Raises:
            ValueError: `x` has another number of channels or of dimensions.
            InputError: `check_extents` refuses the extents of `x`.
            TypeError: `torch.fx` traced the module instead of treating it as a leaf.
        """
        if isinstance(x, Proxy):
            raise TypeError(
                f"torch.fx cannot see into {type(self).__name__}: trace it as a leaf, such as by "
                f'create_feature_extractor(model, nodes, tracer_kwargs={{"leaf_modules": [attention.Gated]}})'
            )
        channels_last = self.layout == "B*C"
        if not 3 <= x.ndim <= 5 or x.shape[-1 if channels_last else 1] != self.channels:
            expected = (
                f"(B, *spatial, {self.channels})" if channels_last else f"(B, {self.channels}, *spatial)"
            )
            raise ValueError(
                f"{type(self).__name__}({self.channels}) takes {expected} with one to three spatial "
                f"dimensions; got {tuple(x.shape)}"
            )
        if not self.class_tokens:
            return self._positions(x)
        first, rest = x.split([self.class_tokens, x.shape[1] - self.class_tokens], dim=1)
        return torch.cat([torch.zeros_like(first) if self.replaces else first, self._positions(rest)], dim=1)

    def tokens(self, x: Tensor) -> tuple[Tensor, Tensor | None, Sequence[int]]:
        """Arrange the positions of features, as for `forward` without class tokens, as `attend` takes them.

        Returns features `(B, N, C)`, zero at padding, the padding mask `(B, N)` or None, and the extents.
        """
        channels_last = self.layout == "B*C"
        spatial = x.shape[1:-1] if channels_last else x.shape[2:]
        # With positions first, the result is a view of the input, whether it is contiguous or channels_last.
        self.check_extents(spatial)
        tokens = x.flatten(1, -2) if channels_last else x.flatten(2).transpose(1, 2)  # (B, N, C)
        mask = current_mask(x.shape[0], spatial)
        if mask is not None:
            tokens = tokens.masked_fill(~mask.unsqueeze(2), 0)
        return tokens, mask, spatial

    def _positions(self, x: Tensor) -> Tensor:
        tokens, mask, spatial = self.tokens(x)
        update = self.compute(tokens, lambda tokens: self.attend(tokens, visible(mask), spatial))
        if update.dtype == torch.float16:
            # The gate's gradient is a sum over the whole batch, which float16 cannot hold.
            update = update.float()
        if mask is not None:
            update = update.masked_fill(~mask.unsqueeze(2), 0)
        if self.blends and not self.replaces:
            return self._blend(x, update, mask, spatial)
        return self.add_gated(x, self._with_extents(update, spatial))

    def compute(self, tokens: Tensor, function: Callable[[Tensor], Result]) -> Result:
        """Return `function(tokens)`, in float32 instead of float16 if the module sums over positions."""
        if self.sums_over_positions and _is_half(tokens):
            with without_autocast(tokens.device.type):
                return function(tokens.float())
        return function(tokens)

    def add_gated(self, x: Tensor, update: Tensor) -> Tensor:
        """Return `x` with the gated update, or the gated update alone if `replaces` is set."""
        update = (self.gamma.to(update.dtype) * update).to(x.dtype)
        return update if self.replaces else x + update

    def _blend(self, x: Tensor, update: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        """Return the features between `x` at gate 0 and `update`, `(B, N, C)`, at gate 1."""
        update = self._with_extents(update, spatial)
        dtype = torch.promote_types(x.dtype, update.dtype)
        y = torch.lerp(x.to(dtype), update.to(dtype), self.gamma.to(dtype)).to(x.dtype)
        if mask is None:
            return y
        mask = mask.unflatten(1, spatial).unsqueeze(-1 if self.layout == "B*C" else 1)
        return torch.where(mask, y, x)

    def _with_extents(self, tokens: Tensor, spatial: Sequence[int]) -> Tensor:
        """Return tokens, `(B, N, C)`, in the layout of the features."""
        last = self.layout == "B*C"
        x: Tensor = tokens.unflatten(1, spatial) if last else tokens.transpose(1, 2).unflatten(2, spatial)
        return x

    def extra_repr(self) -> str:
        """Return what `print` shows of the module."""
        return f"channels={self.channels}"


def visible(mask: Tensor | None) -> Tensor | None:
    """Return the positions that may be attended to: the real ones, or all if none is real, against NaN."""
    return None if mask is None else mask | ~mask.any(1, keepdim=True)


def project(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return `layer(x)` in the dtype of `x`, for modules that compute in float32 to keep the range."""
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return nn.functional.linear(x, layer.weight.to(x.dtype), bias)


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast on a type of device."""
    return torch.autocast(device, enabled=False) if _has_autocast(device) else nullcontext()


def _has_autocast(device: str) -> bool:  # It is not available on "meta".
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _is_half(x: Tensor) -> bool:
    device = x.device.type
    if _has_autocast(device):
        return torch.float16 in (torch.get_autocast_dtype(device), x.dtype)
    return x.dtype == torch.float16


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

    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_hook(record))
        yield maps


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
