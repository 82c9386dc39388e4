"""Runs a model on random tokens and on others, to see which outputs depend on which inputs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attention import Gated
from backbones.example import Example, arguments, first_tensor
from backbones.output import logits
from backbones.torch_internals import tree_leaves, tree_map_only

INTEGERS = (torch.int64, torch.int32)
# Differences due to rounding, relative to the largest output: of a Fourier transform, for example.
ROUNDING = 64 * torch.finfo(torch.float32).eps
SMALL = 0.01  # Parameters whose values are all below this would hide influence, so they are random in a test.


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A model with random tokens.

    Attributes:
        x: The tokens, `(B, N)` integers, or `(B, N, C)` or `(B, C, N)` floating-point numbers.
        axes: Dimensions of the tokens that may be their positions.
        entries: Number of different integers.
        call: Runs the model on tokens. Another function may change the other tensors of the input.
        output: The first tensor of the output for the tokens.
    """

    x: Tensor
    axes: list[int]
    entries: int
    call: Callable[..., Tensor]
    output: Tensor

    def change(self, where: slice, axis: int) -> Tensor:
        """Return the tokens with others at some indices of an axis."""
        x = self.x.clone()
        tokens = x[_at(where, axis)]
        x[_at(where, axis)] = (
            torch.randn_like(tokens) if x.is_floating_point() else (tokens + 1) % self.entries
        )
        return x

    def keeps(self, changed: slice, kept: slice, axis: int, at: int) -> bool:
        """Return whether changed tokens along `axis` leave outputs along `at` as they are."""
        return are_equal(self.call(self.change(changed, axis)), self.output, at, kept)


def are_equal(first: Tensor, second: Tensor, axis: int, where: slice, tolerance: float = ROUNDING) -> bool:
    """Return whether outputs at some indices of an axis are equal up to rounding."""
    a, b = first[_at(where, axis)], second[_at(where, axis)]
    largest = max(float(t.abs().max()) for t in (first, second))
    return not a.numel() or bool((a - b).abs().max() <= tolerance * largest)


@contextmanager
def probe(model: nn.Module, example: Example) -> Iterator[Probe | None]:
    """Prepare a model for changes of its tokens. Yield None if its input has none."""
    tokens, like = first_tensor(example), next(model.parameters())
    floats = tokens.ndim == 3 and tokens.is_floating_point()
    if like.is_meta or not (floats or (tokens.ndim == 2 and tokens.dtype in INTEGERS)):
        yield None
        return

    def call(x: Tensor, replace: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Tensor:
        def take(tensor: Tensor) -> Tensor:
            other = like.dtype if tensor.is_floating_point() else tensor.dtype
            return x if tensor is tokens else replace(tensor).to(like.device, other)

        args, kwargs = tree_map_only(Tensor, take, arguments(example))
        return _first(model(*args, **kwargs))

    entries = count_entries(model)
    with opened(model, like.device):
        x = torch.randn(tokens.shape, device=like.device).to(like.dtype)
        if not floats:
            x = torch.randint(entries, tokens.shape, dtype=tokens.dtype, device=like.device)
        yield Probe(x=x, axes=[1, 2] if floats else [1], entries=entries, call=call, output=call(x))


@contextmanager
def opened(module: nn.Module, device: torch.device, *, training: bool = False) -> Iterator[None]:
    """Set the mode, all gates to 1, and random values of parameters that are nearly zero."""
    modes = {child: child.training for child in module.modules()}
    gates = {child.gamma: child.gamma.clone() for child in module.modules() if isinstance(child, Gated)}
    module.train(training)
    devices = [] if device.type == "cpu" else [device]
    with torch.no_grad(), torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(0)
        small = [p for p in module.parameters() if p not in gates and not (p.abs() >= SMALL).any()]
        values = [(parameter, parameter.clone()) for parameter in small]
        try:
            for parameter in small:
                nn.init.normal_(parameter, std=0.1)
            for gate in gates:
                gate.fill_(1)
            yield
        finally:
            for parameter, value in (*values, *gates.items()):
                parameter.copy_(value)
            for child, mode in modes.items():
                child.training = mode


def count_entries(model: nn.Module) -> int:
    """Return the number of different tokens that every embedding of the model takes."""
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    return min((size for size in sizes if size > 1), default=2)


def _at(where: slice, axis: int) -> tuple[slice, ...]:
    return (*[slice(None)] * axis, where)


def _first(output: Any) -> Tensor:
    """Return the logits, or the first tensor of a model's output."""
    output = logits(output)
    values = list(output.values()) if isinstance(output, Mapping) else output
    tensor: Tensor = next(t for t in tree_leaves(values) if isinstance(t, Tensor))
    return tensor
