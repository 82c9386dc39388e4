"""Attention types: the record of a type in the table, and of a class that somebody else wrote."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attention.gated import Cost, Gated, Layout
from attention.options import Option, OptionValue, read_options
from attention.wrapped import Wrapped, is_rescaling, with_dimensions
from automl.base.errors import InputError, describe_error

SIZES = ("size", "feat_size")  # parameters that get the extents of the features
SIDE = 8  # extents of the features that a new module is tried with


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention type in the table `attention.ATTENTIONS`.

    Attributes:
        name: The name in configurations and on the command line.
        module: Builds a module: `module(channels, **options)`.
        cost: Computes its cost by a formula: `cost(channels, spatial, **options)`. None if the cost is
            counted on a module.
        source: The paper or code that it follows.
        state: Computes how many values one sequence keeps while decoding at `context` tokens:
            `state(channels, context, **options)`. None if the type cannot decode.

    Example:
        >>> from attention import ATTENTIONS
        >>> ATTENTIONS["sagan"].source
        'arXiv 1805.08318'
        >>> ATTENTIONS["multihead"].options["heads"].default
        4
    """

    name: str
    module: Callable[..., nn.Module]
    cost: Callable[..., Cost] | None
    source: str
    state: Callable[..., int] | None = None

    @property
    def options(self) -> Mapping[str, Option]:
        """Return the options by name."""
        return read_options(self.module)

    def build(self, channels: int, size: Sequence[int], options: Mapping[str, OptionValue]) -> Gated:
        """Build a module for features with `channels` channels and the extents `size`."""
        module = self.module(channels, **options)
        assert isinstance(module, Gated)
        return module

    def suggest(self, trial: Any, prefix: str, channels: int) -> dict[str, OptionValue]:
        """Draw the options with several choices from an Optuna trial, as parameters `prefix + option`."""
        return {
            name: trial.suggest_categorical(prefix + name, list(option.choices))
            for name, option in self.options.items()
            if len(option.choices) > 1
        }


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
