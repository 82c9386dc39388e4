"""Attention types by name: of the table, `timm:NAME`, `file.py:Class` and `package.module:Class`.

A module of a class that somebody else wrote is put behind the gate of this project. timm's have none of
timm's own inputs besides the channels, and two spatial dimensions. At other sites the positions are joined or
get a dimension of extent 1.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, get_args

import torch
from torch import Tensor, nn

from attention.attention_map import AttentionMap, rescaling_map
from attention.attention_table import ATTENTIONS, TIMM, Attention, check_name
from attention.gated import Gated, Layout
from attention.options import Option, OptionValue, read_options
from automl.base import loading
from automl.base.errors import InputError, describe_error


class Wrapped(Gated):
    """Module of another author behind a gate that starts at zero.

    Inside `attention.padding.padding(mask)`, the module gets zeros at padded positions. If its `forward` has
    a parameter `mask`, it also gets the mask there, bool `(B, *spatial)`, True at real positions.

    Args:
        channels: Number of channels C of the features.
        module: The module. It maps features to features of the same shape.
        layout: Order of the dimensions that it takes: `BC*` for `(B, C, *spatial)`, `B*C` for `(B, N, C)`.
        dimensions: Number of spatial dimensions that it takes. Features with fewer get dimensions of extent
            1 at the end, and those with more are joined in front. None leaves them as they are.

    Shape:
        `(B, C, *spatial)` to the same shape, or `(B, *spatial, C)` if the attribute `layout` is `B*C`.
    """

    def __init__(
        self, channels: int, module: nn.Module, *, layout: Layout = "BC*", dimensions: int | None = None
    ) -> None:
        super().__init__(channels)
        self.module = module
        self.takes_layout, self.dimensions = layout, dimensions
        self.takes_mask = "mask" in inspect.signature(module.forward).parameters

    def attend(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> Tensor:
        """Compute the output of the module."""
        shape = with_dimensions(spatial, self.dimensions)
        arguments = {}
        if self.takes_mask:
            arguments["mask"] = None if mask is None else mask.unflatten(1, shape)
        if self.takes_layout == "B*C":
            return same_shape(self.module(x, **arguments), x)
        features = x.transpose(1, 2).unflatten(2, shape)  # (B, C, *shape)
        return same_shape(self.module(features, **arguments), features).flatten(2).transpose(1, 2)

    def attention_map(self, x: Tensor, mask: Tensor | None, spatial: Sequence[int]) -> AttentionMap | None:
        """Measure the factors of a module that rescales its input."""
        x = x.to(next((p.dtype for p in self.module.parameters()), x.dtype))
        # Other modules mix elements, so that zeros do not stay zeros.
        dropped = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device) < 0.5
        if self.attend(x.masked_fill(dropped, 0), mask, spatial)[dropped].any():
            return None
        y = self.attend(x, mask, spatial)
        return rescaling_map(x.float(), y.float(), spatial=spatial, mask=mask)


def is_rescaling(wrapped: Wrapped, size: Sequence[int]) -> bool:
    """Return whether a module multiplies its input, element by element, by something.

    Then its output is zero where its input is. The output of a convolution or of attention is not, since it
    mixes elements. False if the module fails, which the check of its contract reports.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, prod(size), wrapped.channels, generator=generator)
    x = x * (torch.rand(x.shape, generator=generator) < 0.5)
    training = wrapped.training
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            y = wrapped.eval().attend(x, None, size)
    except Exception:
        return False
    finally:
        wrapped.train(training)
    return bool((y[x == 0] == 0).all() and (y[x != 0] != 0).any())


def with_dimensions(spatial: Sequence[int], count: int | None) -> Sequence[int]:
    """Return the extents of `spatial` positions with `count` dimensions."""
    if count is None or len(spatial) == count:
        return spatial
    if len(spatial) < count:
        return [*spatial, *[1] * (count - len(spatial))]
    joined = len(spatial) - count + 1
    return [prod(spatial[:joined]), *spatial[joined:]]


class ShapeError(ValueError):
    """A module returns something else than features of the shape of its input."""


def same_shape(y: object, x: Tensor) -> Tensor:
    """Return `y`, the output of a module for `x`, or raise ShapeError unless it has the shape of `x`."""
    if not isinstance(y, Tensor) or y.shape != x.shape:
        shape = tuple(y.shape) if isinstance(y, Tensor) else f"a {type(y).__name__}"
        raise ShapeError(f"returns {shape} for {tuple(x.shape)}; a module must keep the shape")
    return y


SIZES = ("size", "feat_size")  # parameters that get the extents of the features
SIDE = 8  # extents of the features that a new module is tried with


@dataclass(frozen=True, kw_only=True)
class ForeignAttention(Attention):
    """Attention type whose class knows nothing of this project.

    The class takes the channels first. It may name `size` or `feat_size`, and gets the extents of the
    features there. Its module maps features to features of the same shape, and is put behind a gate.

    Attributes:
        multiplies: True if a module rescales its input. Then the gate moves from the input to the module's
            output. Otherwise the gated output is added to the input. None tries each new module.
        layout: Order of the dimensions that a module takes: `BC*` for `(B, C, *spatial)`, `B*C` for
            `(B, N, C)`.
        dimensions: The number of spatial dimensions that a module takes. None if it takes any.
        draws_options: False if searches keep the defaults of its options.
    """

    multiplies: bool | None = None
    layout: Layout = "BC*"
    dimensions: int | None = None
    draws_options: bool = True

    @property
    def options(self) -> Mapping[str, Option]:
        """Return the options by name. The extents of the features are none."""
        return read_options(self.module, leave_out=SIZES)

    @property
    def has_map(self) -> bool:
        """Return whether a module is known to rescale its input, by factors that `attention_maps` records."""
        return bool(self.multiplies)

    def build(self, channels: int, size: Sequence[int], options: Mapping[str, OptionValue]) -> Gated:
        """Build a module behind a gate.

        Raises:
            InputError: The class lacks an argument, raises an error, or is no module.
        """
        parameters = list(inspect.signature(self.module).parameters.values())[1:]
        extents = tuple(with_dimensions(size, self.dimensions))
        sizes = {p.name: extents for p in parameters if p.name in SIZES}
        for p in parameters:
            is_named = p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            if is_named and p.default is p.empty and p.name not in {*sizes, *options}:
                raise InputError(
                    f"attention {self.name!r} needs the argument {p.name!r}; give it a default in the class"
                )
        try:
            module = self.module(channels, **sizes, **options)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"attention {self.name!r} cannot be built for {channels} channels: {describe_error(error)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise InputError(
                f"attention {self.name!r} must be a torch.nn.Module; got {type(module).__name__}"
            )
        if isinstance(module, Gated):
            return module
        wrapped = Wrapped(channels, module, layout=self.layout, dimensions=self.dimensions)
        small = size if sizes else [min(extent, SIDE) for extent in size]
        wrapped.blends = is_rescaling(wrapped, small) if self.multiplies is None else self.multiplies
        return wrapped

    def suggest(self, trial: Any, prefix: str, channels: int) -> dict[str, OptionValue]:
        """Draw the options by the class method `suggest`, or else those with several choices.

        Raises:
            InputError: `suggest` returns no dictionary.
        """
        if not self.draws_options:
            return {}
        own = getattr(self.module, "suggest", None)
        if own is None:
            return super().suggest(trial, prefix, channels)
        options = own(trial, prefix, channels)
        if not isinstance(options, Mapping):
            raise InputError(f"{self.name}.suggest must return a dictionary of options; got {options!r}")
        return dict(options)


def find_attention(name: str) -> Attention:
    """Return the attention type called `name`, after loading user-defined code, or raise InputError."""
    check_name(name)
    if name in ATTENTIONS:
        return ATTENTIONS[name]
    if name.startswith(TIMM):
        from timm.layers import get_attn  # takes seconds

        own: dict[str, Any] = {"source": "timm", "dimensions": 2, "multiplies": True, "draws_options": False}
        return ForeignAttention(name=name, module=get_attn(name.removeprefix(TIMM)), cost=None, **own)
    module = loading.load_object("attention", "Class", name, ATTENTIONS)
    try:
        inspect.signature(module)
    except (TypeError, ValueError) as error:
        raise InputError(f"attention {name!r} must be a class or a function of Python: {error}") from error
    values: dict[str, Any] = {}
    for key, default, choices in (
        ("layout", "BC*", get_args(Layout)),
        ("dimensions", None, (None, 1, 2, 3)),
        ("multiplies", None, (None, True, False)),
    ):
        values[key] = value = getattr(module, key, default)
        if value not in choices:
            raise InputError(
                f"{key} of attention {name!r} must be one of {', '.join(map(str, choices))}; got {value!r}"
            )
    short = loading.short_name(name)
    return ForeignAttention(name=short, module=module, cost=None, source=f"your own: {short}", **values)
