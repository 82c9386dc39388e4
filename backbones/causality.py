"""Tests by changing a token whether a model or a module is causal: no output depends on later tokens."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attention import ATTENTIONS, Gated, InputError, Spec
from backbones.example import Example, arguments, first_tensor
from backbones.output import logits
from backbones.site import Site
from backbones.torch_internals import tree_leaves, tree_map_only

INTEGERS = (torch.int64, torch.int32)


def is_causal(model: nn.Module, example: Example, *, mixes: bool = True) -> bool:
    """Return whether outputs depend on earlier tokens but never on later ones.

    The model runs in evaluation mode on random tokens, and again for each of four tokens, with another one
    instead. If it is causal, all outputs before that token are equal bit by bit, and some output after it
    changes.

    During the test all gates are 1. Parameters that are zero, such as those of a new last layer, are random.
    Afterwards the model is as it was.

    Args:
        model: The model.
        example: An input of the model. Its first tensor has a token axis if it is `(B, N)` integers, or
            `(B, N, C)` or `(B, C, N)` floating-point numbers. Of the output, the first tensor counts.
        mixes: If False, a model that processes each token alone is causal, too.

    Returns:
        Whether the model is causal. False if input or output has no token axis, or the model cannot run.
    """
    tokens, like = first_tensor(example), next(model.parameters())
    if like.is_meta:
        return False
    if tokens.ndim == 2 and tokens.dtype in INTEGERS:
        dtype, axes = tokens.dtype, [1]
    elif tokens.ndim == 3 and tokens.is_floating_point():
        dtype, axes = like.dtype, [1, 2]
    else:
        return False

    def run(x: Tensor) -> Tensor:
        def take(tensor: Tensor) -> Tensor:
            other = like.dtype if tensor.is_floating_point() else tensor.dtype
            return x if tensor is tokens else tensor.to(like.device, other)

        args, kwargs = tree_map_only(Tensor, take, arguments(example))
        return _first(model(*args, **kwargs))

    # Every embedding that may take the tokens has so many entries.
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    entries = min((size for size in sizes if size > 1), default=2)
    try:
        with _opened(model, like.device):
            x = _draw(tokens.shape, dtype, like.device, entries)
            y = run(x)
            pairs = [
                (axis, at) for axis in axes for at in range(1, y.ndim) if y.shape[at] == x.shape[axis] > 1
            ]
            return any(_flows_forward(run, x, y, axis, at, entries, mixes=mixes) for axis, at in pairs)
    except Exception:  # Sites need only the shapes of the example. Its values may be none of an input.
        return False


def sees_later(module: Gated, site: Site) -> bool:
    """Return whether the output of a module at a position depends on later positions.

    Args:
        module: A module for the site.
        site: A site with one spatial dimension.
    """
    axis = 1 if site.layout == "B*C" else 2
    shape = (2, *site.resolution, site.channels) if axis == 1 else (2, site.channels, *site.resolution)
    like = module.gamma
    with _opened(module, like.device):
        x = _draw(shape, like.dtype, like.device)
        y = module(x)
        return not all(
            _equal_before(module(_changed(x, axis, i)), y, axis, i) for i in _positions(shape[axis] - 1)
        )


def refuse(placement: Mapping[str, Spec], leaking: Collection[str]) -> InputError:
    """Return the error for a placement with which a causal model would not be causal.

    Args:
        placement: The specs, by the names of their sites.
        leaking: Names of the sites whose modules are not causal. If it is empty, all modules are causal.
    """
    modules = ", ".join(f"{spec} at site {site!r}" for site, spec in placement.items() if site in leaking)
    if not leaking:
        return InputError(
            f"the model is causal, but not with modules at {', '.join(map(repr, placement))}, although the "
            f"modules are: positions there are not tokens in their order. Choose other sites, or conv1x1"
        )
    *most, last = (name for name, attention in ATTENTIONS.items() if "causal" in attention.options)
    return InputError(
        f"the model is causal, but a position would see later ones by {modules}. Choose conv1x1, or "
        f"{', '.join(most)} or {last} with causal=true"
    )


def _flows_forward(
    run: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, axis: int, at: int, entries: int, *, mixes: bool
) -> bool:
    """Return whether tokens along `axis` of x change outputs along `at` of y at no earlier positions.

    With `mixes` they must change some at later positions.
    """
    last, flows = x.shape[axis] - 1, not mixes
    for i in _positions(last):
        z = run(_changed(x, axis, i, entries))
        if not _equal_before(z, y, at, i):
            return False
        flows |= not torch.equal(*(t.narrow(at, i + 1, last - i) for t in (y, z)))
    return flows


def _equal_before(first: Tensor, second: Tensor, axis: int, i: int) -> bool:
    return torch.equal(first.narrow(axis, 0, i), second.narrow(axis, 0, i))


def _positions(last: int) -> list[int]:
    """Return the tokens to change: middle and last, and two of which padding at one end leaves one."""
    return sorted({last // 2, last, 1, last - 1} & {*range(last + 1)})


def _draw(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, entries: int = 2) -> Tensor:
    """Return random features, or tokens below `entries`."""
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.randint(entries, shape, dtype=dtype, device=device)


def _changed(x: Tensor, axis: int, i: int, entries: int = 2) -> Tensor:
    """Return a copy of `x` with another token at index `i` of `axis`."""
    y = x.clone()
    token = y.select(axis, i)
    token.copy_(torch.randn_like(token) if x.is_floating_point() else (token + 1) % entries)
    return y


def _first(output: Any) -> Tensor:
    """Return the logits, or the first tensor of a model's output."""
    output = logits(output)
    values = list(output.values()) if isinstance(output, Mapping) else output
    tensor: Tensor = next(t for t in tree_leaves(values) if isinstance(t, Tensor))
    return tensor


@contextmanager
def _opened(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Set the evaluation mode, all gates to 1, and random values of parameters that are zero."""
    modes = {child: child.training for child in module.modules()}
    gates = {child.gamma: child.gamma.clone() for child in module.modules() if isinstance(child, Gated)}
    module.eval()
    devices = [] if device.type == "cpu" else [device]
    with torch.no_grad(), torch.random.fork_rng(devices, device_type=device.type):
        torch.manual_seed(0)
        zeros = [p for p in module.parameters() if p not in gates and not p.any()]
        try:
            for parameter in zeros:
                nn.init.normal_(parameter, std=0.1)
            for gate in gates:
                gate.fill_(1)
            yield
        finally:
            for parameter in zeros:
                parameter.zero_()
            for gate, value in gates.items():
                gate.copy_(value)
            for child, training in modes.items():
                child.training = training
